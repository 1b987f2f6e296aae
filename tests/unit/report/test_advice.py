import tomllib

from onecurve.describe.advice import Advice, RunnerUp
from onecurve.describe.convert import from_plain
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.report.advice import advice_lines, advice_plain, plan_file

GIB = 1 << 30


def estimate(text: str, step: float = 1.0, used: float = 4 * GIB) -> Estimate:
    plan = Plan.parse(text)
    return Estimate(
        plan,
        {"forward": step / 4, "backward": 3 * step / 4},
        {"weights": used},
        8 * GIB,
        0.4,
        3600,
        0.1,
        2.0 * plan.mesh.size,
    )


BEST = estimate("shard4 mb2×2 bf16")
ADVICE = Advice(
    "train.py",
    "1 host × 4 D",
    8_030_000_000,
    16,
    BEST,
    (RunnerUp(estimate("replicate4 mb4", 2.0), "slower"),),
    (estimate("shard2 mb8", 3.0, 2 * GIB),),
    (),
)


def test_a_person_reads_what_to_do_and_why() -> None:
    text = "\n".join(advice_lines(ADVICE))
    for said in (
        "8.03 B parameters",
        "plan    shard4 mb2×2 bf16",
        "1.0 s ± 10%",
        "1.0 hours for 3,600 steps on 4 devices, $8.00 ± 10%",
        "4.0 GiB of 8.0 GiB per rank",
        "bf16 computes other numbers than fp32",
        "backward      750.0 ms   75%",
        "free           4.0 GiB   50%",
        "replicate4 mb4 fp32  slower",
        "shard2 mb8 fp32  3.0 s a step, 2.0 GiB per rank, 2 devices, $12",
    ):
        assert said in text, said


def test_what_does_not_fit_begins_with_that() -> None:
    lines = advice_lines(Advice("t.py", "1 host", 1, 1, None, (), (), ("it needs more",)))
    assert lines[2:4] == ["does not fit", "  it needs more"]


def test_the_file_is_the_plan() -> None:
    text = plan_file(ADVICE)
    assert "# samples that a data-parallel rank takes per round" in text
    assert "Predicted: 1.0 s ± 10%" in text
    assert from_plain(Plan, tomllib.loads(text), "plan.toml") == BEST.plan


def test_json_has_every_term() -> None:
    plain = advice_plain(ADVICE)
    assert plain["best"]["seconds"] == BEST.seconds
    assert plain["runners_up"][0]["reason"] == "slower"

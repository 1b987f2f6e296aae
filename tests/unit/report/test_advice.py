import tomllib
from dataclasses import replace

from onecurve.describe.advice import Advice, RunnerUp
from onecurve.describe.convert import from_document
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.report.advice import advice_lines, advice_plain, plan_file

GIB = 1 << 30


def estimate(text: str, step: float = 1.0, memory_bytes: float = 4 * GIB) -> Estimate:
    plan = Plan.parse(text)
    return Estimate(
        plan=plan,
        seconds={"forward": step / 4, "backward": 3 * step / 4},
        memory={"weights": memory_bytes},
        available_bytes=8 * GIB,
        utilization=0.4,
        steps=3600,
        error=0.1,
        price_per_hour=2.0 * plan.mesh.size,
    )


BEST = estimate("shard4 mb2×2 bf16")
ADVICE = Advice(
    script="train.py",
    cluster="1 host × 4 D",
    parameters=8_030_000_000,
    global_batch=16,
    best=BEST,
    runners_up=(RunnerUp(estimate("replicate4 mb4", 2.0), "slower"),),
    frontier=(estimate("shard2 mb8", 3.0, 2 * GIB),),
    hints=(),
)


def test_advice_shows_the_plan_its_cost_and_the_alternatives() -> None:
    text = "\n".join(advice_lines(ADVICE))
    for expected in (
        "8.03 B parameters",
        "plan    shard4 mb2×2 bf16",
        "1.0 s ± 10%",
        "1.0 hours for 3,600 steps on 4 devices, $8.00 ± 10%",
        "4.0 GiB of 8.0 GiB per rank",
        "numerical results differ from those of fp32",
        "backward      750.0 ms   75%",
        "free           4.0 GiB   50%",
        "replicate4 mb4 fp32  slower",
        "shard2 mb8 fp32  3.0 s per step, 2.0 GiB per rank, 2 devices, $12",
    ):
        assert expected in text, expected


def test_advice_says_first_if_nothing_fits() -> None:
    lines = advice_lines(replace(ADVICE, best=None, runners_up=(), frontier=(), hints=("it needs more",)))
    assert lines[2:4] == ["the job does not fit on this cluster", "  it needs more"]


def test_plan_file_reads_back_as_the_plan() -> None:
    text = plan_file(ADVICE)
    assert "# samples per data-parallel rank and round" in text
    assert "Predicted: 1.0 s ± 10% per step" in text
    assert from_document(Plan, tomllib.loads(text), "plan.toml") == BEST.plan


def test_json_has_every_term() -> None:
    plain = advice_plain(ADVICE)
    assert plain["best"]["seconds"] == BEST.seconds
    assert plain["runners_up"][0]["reason"] == "slower"

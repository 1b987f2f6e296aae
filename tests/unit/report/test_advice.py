import tomllib
from dataclasses import replace

from onecurve.describe.advice import Advice, RunnerUp
from onecurve.describe.cluster_shorthand import parse_cluster
from onecurve.describe.convert import from_document
from onecurve.describe.costs import Tokens
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.report.advice import advice_lines, advice_plain, plan_file, start_lines

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
        reserved_bytes=GIB,
    )


BEST = estimate("shard4 mb2×2 bf16")
ADVICE = Advice(
    script="train.py",
    cluster="1 host × 4 D",
    machines=parse_cluster("4xH100"),
    parameters=8_030_000_000,
    global_batch=16,
    tokens=None,
    best=BEST,
    choice="",
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
        "4.0 GiB of 8.0 GiB per rank; 1.0 GiB (11% of the device) is reserved",
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


def test_the_first_lines_name_the_choice_and_a_faster_precision() -> None:
    lines = advice_lines(replace(ADVICE, choice="it is simpler", faster_precision="5 times as fast"))
    assert lines[2:6] == [
        "plan    shard4 mb2×2 bf16",
        "choice  it is simpler",
        "step    1.0 s ± 10%, 16 samples/s, 40% of peak FLOP/s",
        "bf16    5 times as fast",
    ]


def test_tokens_are_shown_where_they_are_known() -> None:
    assert not any(line.startswith("tokens") for line in advice_lines(ADVICE))
    lines = advice_lines(replace(ADVICE, tokens=Tokens(4096, "the length of input_ids")))
    assert "tokens  65,536 per second: 4,096 per sample, the length of input_ids (padding included)" in lines


def test_the_assumed_links_and_their_source_are_shown() -> None:
    (one_host,) = [line for line in advice_lines(ADVICE) if line.startswith("links")]
    assert one_host == "links   450 GB/s within a host (collectives reach 78%), per device and direction"
    several = replace(ADVICE, machines=parse_cluster("8xH100+8xA100"), machines_source="the catalogue")
    (links,) = [line for line in advice_lines(several) if line.startswith("links")]
    assert links == (
        "links   H100-80GB-SXM: 450 GB/s within a host (collectives reach 78%), 50 GB/s between hosts "
        "(collectives reach 35%); A100-80GB-SXM: 300 GB/s within a host (collectives reach 78%), 25 GB/s between "
        "hosts (collectives reach 35%), per device and direction; from the catalogue"
    )
    alone = replace(ADVICE, machines=parse_cluster("1xH100"))
    assert not any(line.startswith("links") for line in advice_lines(alone))


def test_how_to_start_one_host() -> None:
    assert start_lines(ADVICE, "run train.py --plan plan.toml") == [
        "train with: onecurve run train.py --plan plan.toml"
    ]


def test_how_to_start_several_hosts() -> None:
    advice = replace(ADVICE, machines=parse_cluster("2x8xH100"), best=estimate("shard16 mb1"))
    first, command = start_lines(advice, "run train.py lr=1 --plan plan.toml")
    assert first.startswith("train on 2 hosts: start this on each")
    assert command == "  onecurve run train.py lr=1 --plan plan.toml --hosts 2"


def test_json_has_links_tokens_and_the_reserve() -> None:
    plain = advice_plain(replace(ADVICE, tokens=Tokens(4096, "the length of input_ids"), machines_source="a file"))
    assert plain["tokens_per_second"] == 65_536
    assert plain["links"] == [{"device": "H100-80GB-SXM", "intra_host_bandwidth": 450e9, "inter_host_bandwidth": 50e9}]
    assert plain["links_source"] == "a file"
    assert plain["best"]["reserved_bytes"] == GIB
    assert advice_plain(replace(ADVICE, best=None))["tokens_per_second"] is None

from dataclasses import replace

import pytest

from onecurve.describe.cluster import Cluster
from onecurve.describe.engine import Engine
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ModuleProfile, Profile, Work
from onecurve.predict.memory import components, refuse_if_too_large, state_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("mb8", 100 + 80 + 2 * 80),
        ("replicate4 mb8", 100 + 80 + 2 * 80),
        ("shard4 mb8", 25 + 20 + 2 * 20),
        ("shard4 mb8×2", 25 + 80 + 2 * 20),  # whole gradients stay between rounds
        ("shard4 mb8×2 reduce=round", 25 + 20 + 2 * 20),
        ("mb8 fp64", 2 * (100 + 80 + 2 * 80)),
    ],
)
def test_by_hand(plan: str, expected: int) -> None:
    assert state_bytes(100, 80, 2, Plan.parse(plan)) == expected


def test_what_fits_passes() -> None:
    refuse_if_too_large(4 * GIB, Plan.parse("replicate2 mb8"), Cluster.of("cpu", 2, 8 * GIB, 2))


@pytest.mark.parametrize(
    ("needed", "plan", "cluster", "says"),
    [
        (5 * GIB, "replicate2 mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "5.0 GiB per rank.*4.0 GiB for each of 2"),
        (9 * GIB, "mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "one copy takes 9.0 GiB"),
        (30 * GIB, "replicate8 mb8", Cluster.of("cuda", 8, 24 * GIB, 64), "for example shard2"),
        (300 * GIB, "mb8", Cluster.of("cuda", 8, 24 * GIB, 64), "one copy takes 300.0 GiB"),
    ],
)  # fmt: skip
def test_what_does_not_says_by_how_much_and_the_mend(needed: int, plan: str, cluster: Cluster, says: str) -> None:
    with pytest.raises(OnecurveError, match=says):
        refuse_if_too_large(needed, Plan.parse(plan), cluster)


def test_stages_of_unlike_blocks_hold_what_theirs_take() -> None:
    heavy, light = (
        ModuleProfile(("b",) * count, size, size, 0, 0, Work(), activation_bytes=10 * size, input_bytes=0)
        for count, size in ((1, 300), (3, 20))
    )
    found = Profile(1, (heavy, light), ModuleProfile((), 0, 0, 0, 0, Work(), 0, 0), 0, 2, order=(0, 1, 1, 1))
    plan = replace(Plan.parse("pipeline2 mb1×2"), stages=(1, 3))
    parts = components(found, plan, Engine(weight_bytes=4, stored_gradient_bytes=4, optimizer_state_bytes=8), 0)
    assert (parts["weights"], parts["activations"]) == (pytest.approx(300 * 4), pytest.approx(2 * 3000))


def test_components_by_hand() -> None:
    """Eight blocks on four stages: the first stage has four rounds under way of two blocks each."""
    block = ModuleProfile(("b",) * 8, 100, 100, 0, 0, Work(), activation_bytes=1000, input_bytes=10)
    found = Profile(1, (block,), ModuleProfile((), 50, 50, 0, 0, Work(), activation_bytes=3000, input_bytes=0), 0, 2)
    engine = Engine(weight_bytes=4, stored_gradient_bytes=4, optimizer_state_bytes=8)
    plan = Plan.parse("pipeline4 mb1×8")
    assert components(found, plan, engine, overhead=7) == {
        "weights": 250 * 4,
        "gradients": 250 * 4,
        "optimizer": 250 * 8,
        "gathered": 0,
        "activations": 4 * 2 * 1000,
        "overhead": 7,
    }
    again = components(found, Plan.parse("pipeline4 mb1×8 recompute=full"), engine, 0)
    assert again["activations"] == 2 * 10 + 1000 + 3000  # the last stage: few rounds, but the output
    shared = components(
        found, Plan.parse("replicate4 mb1"), Engine(optimizer_state_bytes=8, shards_optimizer_state=True), 0
    )
    assert shared["optimizer"] == 850 * 8 / 4
    cut = components(found, Plan.parse("shard4 mb1×2"), Engine(all_gather_bytes=2), 0)
    assert cut["gradients"] == 850 * 4  # whole between rounds
    assert cut["gathered"] == (2 * 100 + 50) * 2

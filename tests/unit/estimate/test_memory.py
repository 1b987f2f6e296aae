from dataclasses import replace

import pytest

from onecurve.describe.cluster import Cluster
from onecurve.describe.engine import Engine
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ModuleProfile, Profile, Work
from onecurve.estimate.memory import memory_components, refuse_if_too_large, snapshot_bytes, state_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("mb8", 100 + 80 + 2 * 80),
        ("replicate4 mb8", 100 + 80 + 2 * 80),
        ("shard4 mb8", 25 + 20 + 2 * 20),
        ("shard4 mb8×2", 25 + 80 + 2 * 20),  # unsharded gradients accumulate between rounds
        ("shard4 mb8×2 reduce=round", 25 + 20 + 2 * 20),
        ("mb8 fp64", 2 * (100 + 80 + 2 * 80)),
    ],
)
def test_state_bytes(plan: str, expected: int) -> None:
    assert state_bytes(100, 80, 2, Plan.parse(plan)) == expected


def test_a_model_that_fits_is_accepted() -> None:
    refuse_if_too_large(4 * GIB, Plan.parse("replicate2 mb8"), Cluster.of("cpu", 2, 8 * GIB, 2), 2)


def test_only_ranks_of_one_host_share_its_memory() -> None:
    refuse_if_too_large(8 * GIB, Plan.parse("replicate2 mb8"), Cluster.of("cpu", 2, 8 * GIB, 2), local_ranks=1)


@pytest.mark.parametrize(
    ("needed", "plan", "cluster", "says"),
    [
        (5 * GIB, "replicate2 mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "5.0 GiB per rank.*4.0 GiB for each of 2"),
        (9 * GIB, "mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "one replica needs 9.0 GiB"),
        (30 * GIB, "replicate8 mb8", Cluster.of("cuda", 8, 24 * GIB, 64), "for example shard2"),
        (300 * GIB, "mb8", Cluster.of("cuda", 8, 24 * GIB, 64), "one replica needs 300.0 GiB"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_refused_with_the_fix(needed: int, plan: str, cluster: Cluster, says: str) -> None:
    with pytest.raises(OnecurveError, match=says):
        refuse_if_too_large(needed, Plan.parse(plan), cluster, Plan.parse(plan).mesh.size)


def test_stages_of_different_blocks_need_different_memory() -> None:
    heavy, light = (
        ModuleProfile(("b",) * count, size, size, 0, 0, Work(), activation_bytes=10 * size, input_bytes=0)
        for count, size in ((1, 300), (3, 20))
    )
    profile = Profile(1, (heavy, light), ModuleProfile((), 0, 0, 0, 0, Work(), 0, 0), 0, 2, order=(0, 1, 1, 1))
    plan = replace(Plan.parse("pipeline2 mb1×2"), stages=(1, 3))
    parts = memory_components(
        profile, plan, Engine(weight_bytes=4, stored_gradient_bytes=4, optimizer_state_bytes=8), 0
    )
    assert (parts["weights"], parts["activations"]) == (pytest.approx(300 * 4), pytest.approx(2 * 3000))


def test_replicas_divide_their_snapshots() -> None:
    block = ModuleProfile(("b",) * 8, 100, 50, 0, 0, Work(), activation_bytes=1000, input_bytes=10)
    profile = Profile(1, (block,), ModuleProfile((), 40, 20, 0, 0, Work(), activation_bytes=0, input_bytes=0), 0, 2)
    engine = Engine(weight_bytes=4, stored_gradient_bytes=4, optimizer_state_bytes=8)
    of_one = 840 * 4 + 420 * 8
    assert snapshot_bytes(profile, Plan.parse("mb8"), engine, 1) == of_one
    for plan in ("replicate4 mb2", "shard4 mb2", "replicate2·shard2 mb2"):
        assert snapshot_bytes(profile, Plan.parse(plan), engine, 2) == 2 * of_one / 4


def test_components_by_hand() -> None:
    """Eight blocks on four stages: the first stage stores four rounds of two blocks each."""
    block = ModuleProfile(("b",) * 8, 100, 100, 0, 0, Work(), activation_bytes=1000, input_bytes=10)
    profile = Profile(1, (block,), ModuleProfile((), 50, 50, 0, 0, Work(), activation_bytes=3000, input_bytes=0), 0, 2)
    engine = Engine(weight_bytes=4, stored_gradient_bytes=4, optimizer_state_bytes=8)
    plan = Plan.parse("pipeline4 mb1×8")
    assert memory_components(profile, plan, engine, overhead=7) == {
        "weights": 250 * 4,
        "gradients": 250 * 4,
        "optimizer": 250 * 8,
        "gathered": 0,
        "activations": 4 * 2 * 1000,
        "overhead": 7,
    }
    recomputed = memory_components(profile, Plan.parse("pipeline4 mb1×8 recompute=full"), engine, 0)
    assert recomputed["activations"] == 2 * 10 + 1000 + 3000  # the last stage: one round, and the output
    zero1 = memory_components(
        profile, Plan.parse("replicate4 mb1"), Engine(optimizer_state_bytes=8, shards_optimizer_state=True), 0
    )
    assert zero1["optimizer"] == 850 * 8 / 4
    sharded = memory_components(profile, Plan.parse("shard4 mb1×2"), Engine(all_gather_bytes=2), 0)
    assert sharded["gradients"] == 850 * 4  # unsharded between rounds
    assert sharded["gathered"] == (2 * 100 + 50) * 2


def module(names: int = 0, **sizes: int) -> ModuleProfile:
    fields = {"parameters": 0, "trainable": 0, "activation_bytes": 0, "input_bytes": 0, **sizes}
    return ModuleProfile(names=("b",) * names, parameter_bytes=0, trainable_bytes=0, work=Work(), **fields)


BLOCK = module(8, parameters=100, trainable=60, activation_bytes=1000, input_bytes=40, matmul_output_bytes=200)
OUTSIDE = module(parameters=50, trainable=30, activation_bytes=3000)
MODEL = Profile(samples=1, blocks=(BLOCK,), outside=OUTSIDE, shared_activation_bytes=7, optimizer_tensors=2)
ENGINE = Engine(all_gather_bytes=4, weight_bytes=4, stored_gradient_bytes=3, optimizer_state_bytes=8)


def needs(plan: str | Plan, component: str, engine: Engine = ENGINE, profile: Profile = MODEL) -> float:
    parsed = Plan.parse(plan) if isinstance(plan, str) else plan
    return memory_components(profile, parsed, engine, overhead=11)[component]


def test_state_of_850_parameters_of_which_510_are_trained() -> None:
    assert [needs("mb1×2", part) for part in ("weights", "gradients", "optimizer", "gathered", "overhead")] == [
        850 * 4,
        510 * 3,
        510 * 8,
        0,
        11,
    ]
    assert [needs("shard5 mb1", part) for part in ("weights", "gradients", "optimizer", "gathered")] == [
        850 * 4 / 5,
        510 * 3 / 5,
        510 * 8 / 5,
        (2 * 100 + 50) * 4,
    ]


@pytest.mark.parametrize(
    ("plan", "full"),
    [
        ("shard5 mb1", False),
        ("shard5 mb1×2", True),
        ("shard5 mb1×2 reduce=round", False),
        ("shard5 mb1×2 zero2", True),
    ],
)
def test_gradients_are_unsharded_between_rounds_that_do_not_reduce(plan: str, full: bool) -> None:
    assert needs(plan, "gradients") == 510 * 3 / (1 if full else 5)


def test_two_shards_keep_full_gradients_too() -> None:
    assert needs("shard2 mb1", "gradients") == 510 * 3 / 2
    assert needs("shard2 mb1×2", "gradients") == 510 * 3


@pytest.mark.parametrize(
    ("plan", "elements"),
    [
        ("mb1", 0),
        ("replicate2 mb1", 0),  # DDP has no second copy
        ("tensor2 mb1", 0),
        ("shard2 mb1", 250),  # two blocks and the parameters outside
        ("shard2 mb1 zero2", 850),
        ("replicate2·tensor2 mb1", 850),  # fully_shard with one shard per rank
        ("shard2·tensor2 mb1", 250),
        ("replicate2·shard2 mb1", 250),
    ],
)
def test_gathered_parameters(plan: str, elements: int) -> None:
    assert needs(plan, "gathered") == 4 * elements
    assert needs(plan, "gathered", replace(ENGINE, all_gather_bytes=2)) == 2 * elements
    assert needs(plan, "gathered", replace(ENGINE, keeps_gathered_copy=False)) == 0


def test_the_largest_kind_of_block_is_gathered() -> None:
    unequal = replace(MODEL, blocks=(module(2, parameters=10), module(2, parameters=300), module(2, parameters=20)))
    assert needs("shard2 mb1", "gathered", profile=unequal) == (2 * 300 + 50) * 4


def test_optimizer_state_is_divided_over_replicas_only_by_engines_that_do_so() -> None:
    assert needs("replicate2·shard5 mb1", "optimizer") == 510 * 8 / 5
    assert needs("replicate2·shard5 mb1", "optimizer", replace(ENGINE, shards_optimizer_state=True)) == 510 * 8 / 10


def test_a_model_without_blocks() -> None:
    bare = replace(MODEL, blocks=())
    assert needs("shard2 mb1", "gathered", profile=bare) == 50 * 4
    assert needs("mb1 recompute=full", "activations", profile=bare) == 7 + 3000


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("mb1", 8 * 1000 + 7 + 3000),
        ("mb1×4", 8 * 1000 + 7 + 3000),  # without a pipeline one round at a time
        ("tensor2 mb1 sequence", 8 * 1000 + 7 + 3000),
        ("mb1 recompute=full", 8 * 40 + 1000 + 7 + 3000),
        ("tensor2 mb1 recompute=full", 8 * 40 + 1000 + 7 + 3000),
        ("tensor2 mb1 recompute=full sequence", 8 * 20 + 1000 + 7 + 3000),
        ("mb1 recompute=selective", 8 * 240 + 1000 + 7 + 3000),
        ("tensor2 mb1 recompute=selective sequence", 8 * 220 + 1000 + 7 + 3000),
        ("pipeline2 mb1×8", 2 * 4 * 1000 + 7),  # the first rank has two rounds of four blocks
        ("pipeline4 mb1×8", 4 * 2 * 1000 + 7),
        ("pipeline2 mb1×8 schedule=gpipe", 8 * 4 * 1000 + 7),
        ("pipeline2 mb1×8 schedule=zero-bubble", 2 * 4 * 1000 + 7),
        ("pipeline2 mb1×8 schedule=interleaved", 2.5 * 4 * 1000 + 7),  # 2 · (1 + 1 / 4) rounds
        ("pipeline4 mb1×8 schedule=interleaved", 5.5 * 2 * 1000 + 7),  # 4 · (1 + 3 / 8) rounds
        ("pipeline2 mb1×2 schedule=interleaved", 2 * 4 * 1000 + 7),  # no more than there are
        ("pipeline2 mb1 schedule=gpipe", 4 * 1000 + 7 + 3000),  # the last rank, with the output
        ("mb1×4 schedule=gpipe", 8 * 1000 + 7 + 3000),
        ("pipeline2 mb1×2 recompute=full", 4 * 40 + 1000 + 7 + 3000),
    ],
)
def test_activations_of_the_fullest_rank(plan: str, expected: float) -> None:
    assert needs(plan, "activations") == pytest.approx(expected)


def test_selective_recomputation_never_saves_more_than_none() -> None:
    wide = replace(MODEL, blocks=(replace(BLOCK, matmul_output_bytes=5000),))
    assert needs("mb1 recompute=selective", "activations", profile=wide) == 8 * 1000 + 1000 + 7 + 3000


def test_weights_gathered_in_bf16_are_not_saved_with_the_activations() -> None:
    bf16 = replace(ENGINE, all_gather_bytes=2)
    assert needs("mb1", "activations", bf16) == 8 * 1000 + 7 + 3000
    assert needs("shard2 mb1", "activations", bf16) == 8 * (1000 - 2 * 100) + 7 + 3000
    assert needs("shard2 mb1", "activations", ENGINE) == 8 * 1000 + 7 + 3000
    heavy = replace(MODEL, blocks=(replace(BLOCK, parameters=490),))
    assert needs("shard2 mb1", "activations", bf16, heavy) == 8 * 40 + 7 + 3000  # the input at least


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("tensor2 mb8", (100 + 80 + 160) // 2),
        ("pipeline5·tensor2 mb8×5", (100 + 80 + 160) // 10),
        ("shard4 mb8×2 zero2", 25 + 80 + 40),
        ("replicate2·shard4 mb8×2", 25 + 80 + 40),
        ("replicate2 mb8×2", 100 + 80 + 160),
    ],
)
def test_state_of_a_divided_model(plan: str, expected: int) -> None:
    assert state_bytes(100, 80, 2, Plan.parse(plan)) == expected


@pytest.mark.parametrize(
    ("needed", "plan", "cluster", "words", "absent"),
    [
        (24 * GIB + 1, "mb8", Cluster.of("cuda", 8, 24 * GIB, 64), "shard2", "for each of"),
        (24 * GIB, "shard8 mb8", Cluster.of("cuda", 8, 20 * GIB, 64), "192.0 GiB", "shard over"),
        (20 * GIB + 1, "shard4·tensor2 mb8", Cluster.of("cuda", 9, 20 * GIB, 64), "shard9", "for each of"),
        (21 * GIB, "pipeline8 mb8×8", Cluster.of("cuda", 8, 20 * GIB, 64), "168.0 GiB", "for each of"),
        (20 * GIB, "replicate2·shard4 mb8", Cluster.of("cuda", 8, 10 * GIB, 64), "shard8", "for each of"),
        (5 * GIB, "replicate2 mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "2 replicas are too many", "one replica"),
        (8 * GIB, "replicate2 mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "2 replicas are too many", "one replica"),
        (5 * GIB, "shard2 mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "one replica needs 10.0 GiB", "too many"),
        (9 * GIB, "mb8", Cluster.of("cpu", 2, 8 * GIB, 2), "8.0 GiB;", "for each of"),
    ],
)
def test_what_is_too_large_says_what_would_fit(
    needed: int, plan: str, cluster: Cluster, words: str, absent: str
) -> None:
    with pytest.raises(OnecurveError) as refused:
        refuse_if_too_large(needed, Plan.parse(plan), cluster, Plan.parse(plan).mesh.size)
    assert words in str(refused.value)
    assert absent not in str(refused.value)


def test_the_largest_kind_of_block_is_being_recomputed() -> None:
    kinds = tuple(module(1, activation_bytes=size, input_bytes=40) for size in (100, 900, 500))
    unequal = replace(MODEL, blocks=kinds, order=(0, 1, 2))
    assert needs("mb1 recompute=full", "activations", profile=unequal) == 3 * 40 + 900 + 7 + 3000

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import read_toml, to_toml, write_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import AXES, Mesh
from onecurve.describe.plan import Plan, default_plan, split_evenly
from onecurve.describe.plan_validation import validate

HOST = Cluster.of("cpu", 2, 8 << 30, 2)

placements = st.sampled_from(["replicated", "row_sharded"])
meshes = st.builds(Mesh, **{axis: st.integers(1, 4) for axis in AXES})


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    mesh = draw(meshes)
    shares = st.lists(st.integers(1, 9), min_size=mesh.data, max_size=mesh.data).map(tuple)
    return Plan(
        mesh,
        draw(st.one_of(st.integers(1, 10**6), shares)),
        draw(st.integers(1, 1000)),
        draw(st.sampled_from(["fp64", "fp32", "bf16", "fp16"])),
        draw(st.sampled_from(["step", "round"])),
        draw(st.sampled_from(["zero3", "zero2"])),
        draw(st.sampled_from(["none", "selective", "full"])),
        draw(st.booleans()),
        draw(st.sampled_from(["none", "bf16", "fp16"])),
        draw(st.booleans()),
        draw(st.integers(0, 64)),
        tables=draw(st.dictionaries(st.sampled_from(["*", "user", "item*"]), placements)),
    )


@given(plans())
def test_text_round_trips(plan: Plan) -> None:
    assert Plan.parse(str(plan)) == plan


@given(plans())
def test_toml_round_trips(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        write_toml(plan, path)
        assert read_toml(Plan, path) == plan


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("pipeline2·shard2·tensor4 mb4×8 bf16", Plan(Mesh(pipeline=2, shard=2, tensor=4), 4, 8, "bf16")),
        ("replicate2 mb(6,2)×8 fp32", Plan(Mesh(replicate=2), (6, 2), 8)),
        ("mb32 fp32", Plan(Mesh(), 32)),
        (
            "shard2 mb4 bf16 zero2 recompute=full compile compress=fp16 channels_last threads=2",
            Plan(Mesh(shard=2), 4, 1, "bf16", "step", "zero2", "full", True, "fp16", True, 2),
        ),
        ("replicate2.shard2 mb4x2 reduce=round", Plan(Mesh(replicate=2, shard=2), 4, 2, "fp32", "round")),
    ],
)
def test_text_form(text: str, plan: Plan) -> None:
    assert Plan.parse(text) == plan


@given(plans())
def test_shares_cover_each_round_once(plan: Plan) -> None:
    bounds = [plan.share(rank) for rank in range(plan.mesh.data)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == plan.round_size
    assert all(before[1] == after[0] for before, after in pairwise(bounds))


@given(meshes)
def test_ranks_of_one_model_copy_take_the_same_share(mesh: Mesh) -> None:
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert len({tuple(place.values()) for place in places}) == mesh.size
    takers = {}
    for rank, place in enumerate(places):
        takers.setdefault(mesh.data_rank(rank), set()).add((place["replicate"], place["shard"]))
    assert sorted(takers) == list(range(mesh.data))
    assert all(len(found) == 1 for found in takers.values())


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_even_split(total: int, parts: int) -> None:
    shares = split_evenly(total, parts)
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("replicat2 mb4", "did you mean 'replicate'"),
        ("shard2", "the micro-batch is missing"),
        ("shard2·shard2 mb4", "appears twice"),
        ("shard2 shard4 mb4", "appears twice"),
        ("shard2 mb4 mb8", "'mb8' repeats what another word says"),
        ("mb4 bf16 fp32", "'fp32' repeats"),
        ("mb4 recompute=full recompute=selective", "repeats"),
        ("shard2 mb(1,2,3)", "3 shares for 2 data-parallel ranks"),
        ("shard2 mb0", "at least 1"),
        ("shard2 mb4 reduce=never", "known: step, round"),
        ("shard2 mb4 recomput=full", "unknown option 'recomput' .did you mean 'recompute'"),
        ("shard2 mb4 recompute", "cannot read 'recompute'"),
        ("shard2 mb4 compile=yes", "compile: expected bool"),
        ("shard2 mb4 threads=-1", "threads: expected int|0 .an equal part"),
        ("hello mb4", "a plan looks like"),
        ("shard0 mb4", "must be at least 1"),
    ],
)
def test_bad_text_names_the_fix(text: str, says: str) -> None:
    with pytest.raises(OnecurveError, match=says):
        Plan.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("context2 mb32", "the axis 'context' is not supported"),
        ("mb8×4 schedule=gpipe", "schedule=gpipe without the axis 'pipeline'"),
        ("pipeline2 mb32", "needs at least 2 rounds, but the plan has 1; use more rounds, or schedule=gpipe"),
        ("pipeline4 mb4×8 schedule=interleaved recompute=fll", "known: none, selective, full"),
        ("pipeline4 mb(32)×1 schedule=1f1", "known: 1f1b, gpipe, interleaved, zero-bubble"),
        ("pipeline2·shard2 mb4×4 schedule=zero-bubble", "add zero2"),
        ("pipeline2 mb8×4 schedule=zero-bubble recompute=full", "each of which would recompute"),
        ("pipeline2 mb8×4 schedule=zero-bubble compile", "cannot split the backward of compiled blocks"),
        ("mb32 sequence", "sequence without the axis 'tensor'"),
        ("mb32 zero2", "zero2 without the axis 'shard'"),
        ("mb32 compress=bf16", "a single data-parallel rank sends no gradients"),
        ("replicate2 mb8×3", r"8 samples|rounds must divide global_batch: try 1, 2, 4, 8, 16, 32"),
        ("replicate2 mb8", r"try replicate2 mb16 fp32"),
        ("replicate3 mb8", r"try replicate3 mb\(11,11,10\) fp32"),
    ],
)
def test_validation_names_the_fix(text: str, says: str) -> None:
    with pytest.raises(OnecurveError, match=says):
        validate(Plan.parse(text), 32, HOST)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan(Mesh(pipeline=2), 8, 4, stages=(1, 1, 1)), "3 stages cannot be divided evenly over 2 pipeline ranks"),
        (Plan(Mesh(pipeline=2), 8, 4, stages=(1, 1, 1, 1)), "1f1b needs one stage per pipeline rank"),
        (Plan(Mesh(), 8, 4, stages=(1, 1)), "stages without the axis 'pipeline'"),
        (Plan(Mesh(pipeline=3), 4, 8, schedule="interleaved"), None),
        (Plan(Mesh(pipeline=3), 4, 16, schedule="zero-bubble"), "cannot be grouped like that; use a multiple of 3"),
    ],
)
def test_stages_must_fit_the_schedule(plan: Plan, says: str | None) -> None:
    if says is None:
        validate(plan, plan.global_batch, HOST)
        return
    with pytest.raises(OnecurveError, match=says):
        validate(plan, plan.global_batch, HOST)


def test_more_ranks_than_accelerators_are_refused() -> None:
    with pytest.raises(OnecurveError, match="4 ranks of this host need a device each, but it has 2 of kind cuda"):
        validate(Plan.parse("replicate4 mb8"), 32, Cluster.of("cuda", 2, 1 << 34, 8))


def test_default_plan_splits_an_odd_batch() -> None:
    assert str(default_plan(7, 2)) == "replicate2 mb(4,3) fp32"
    with pytest.raises(OnecurveError, match="at most 3 ranks"):
        default_plan(3, 4)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("micro_batchs = 4", "unknown key 'micro_batchs' .did you mean 'micro_batch'"),
        ("[mesh]\nshards = 2", r"\[mesh\]: unknown key 'shards' .did you mean 'shard'"),
        ('micro_batch = "4"', "micro_batch: expected"),
        ("[mesh]\nshard = 2.5", "mesh.shard: expected int"),
        ('precision = "fp31"', "precision = 'fp31' .known: fp64, fp32, bf16, fp16"),
        ("rounds = 0", "at least 1"),
        ("rounds =", "not valid TOML"),
    ],
)
def test_strict_toml(toml: str, says: str, tmp_path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(toml)
    with pytest.raises(OnecurveError, match=says):
        read_toml(Plan, path)


def test_a_plan_reads_well_as_toml() -> None:
    text = to_toml(Plan(Mesh(replicate=2), (6, 2), 8))
    assert "replicate = 2" in text
    assert "rounds = 8" in text


def test_options_that_are_not_written_are_off() -> None:
    plan = Plan.parse("mb8")
    assert (plan.compile, plan.channels_last, plan.sequence) == (False, False, False)
    assert (plan.precision, plan.reduce, plan.sharding, plan.threads) == ("fp32", "step", "zero3", 0)


def test_equal_shares_become_one_number() -> None:
    assert Plan(Mesh(replicate=2), (4, 4)) == Plan(Mesh(replicate=2), 4)
    assert Plan(Mesh(replicate=2), (4, 3)).micro_batch == (4, 3)


def test_sizes_by_hand() -> None:
    uneven, even = Plan.parse("replicate2 mb(6,2)×8"), Plan.parse("replicate2·shard3 mb4×2")
    assert (uneven.round_size, uneven.global_batch, uneven.share(1)) == (8, 64, (6, 8))
    assert (even.round_size, even.global_batch, even.share(2)) == (24, 48, (8, 12))


@pytest.mark.parametrize(
    ("plan", "stages"),
    [
        (Plan(Mesh(pipeline=3), 1, 3), 3),
        (Plan(Mesh(pipeline=3), 1, 3, schedule="interleaved"), 6),
        (Plan(Mesh(pipeline=3), 1, 3, schedule="interleaved", stages=(1,) * 9), 9),
    ],
)
def test_number_of_stages(plan: Plan, stages: int) -> None:
    assert plan.stage_count == stages


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("mb8", False),
        ("mb8 fp64", False),
        ("mb8 bf16", True),
        ("mb8 fp16", True),
        ("replicate2 mb8 compress=bf16", True),
    ],
)
def test_low_precision_changes_numerics(text: str, changes: bool) -> None:
    assert Plan.parse(text).changes_numerics is changes


def test_smallest_values() -> None:
    assert Plan(Mesh(), 1, 1, threads=0).global_batch == 1
    for wrong in ({"micro_batch": 0}, {"micro_batch": (1, 0), "mesh": Mesh(shard=2)}, {"rounds": 0}, {"threads": -1}):
        with pytest.raises(OnecurveError):
            Plan(**wrong)


def test_every_rank_of_the_default_plan_needs_a_sample() -> None:
    assert str(default_plan(3, 3)) == "replicate3 mb1 fp32"
    assert split_evenly(7, 3) == (3, 2, 2)


def test_the_first_pattern_that_matches_places_a_table() -> None:
    plan = Plan.parse("replicate2 mb4 tables=user*:replicated,*:row_sharded")
    assert [plan.table_placement(name) for name in ("user", "user_2", "item")] == [
        *("replicated", "replicated"),
        "row_sharded",
    ]
    assert Plan.parse("replicate2 mb4").table_placement("user") == "row_sharded"
    assert str(Plan.parse("replicate2 mb4 tables=replicated")) == "replicate2 mb4 fp32 tables=replicated"
    with pytest.raises(OnecurveError, match="replicated"):
        Plan.parse("replicate2 mb4 tables=everywhere")

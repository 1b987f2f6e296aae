"""Each term of the step time against a number calculated by hand."""

from dataclasses import replace

import pytest

from onecurve.describe.catalogue import hosts_of
from onecurve.describe.cluster import DeviceSpec, HostGroup, Link
from onecurve.describe.constants import Constants
from onecurve.describe.engine import Engine
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Collective, ComputeLoad, ModuleProfile, Profile, Work
from onecurve.estimate import compute
from onecurve.estimate.collective import place_axis
from onecurve.estimate.step import Predictor

DEVICE = DeviceSpec(
    "d", "cuda", 10**9, memory_bandwidth=1e9, flops={"fp32": 1e12}, matmul_efficiency=0.5, attention_efficiency=0.25
)
HOSTS = HostGroup(DEVICE, 4, 8, 0, intra_host=Link(1e-6, 100e9), inter_host=Link(10e-6, 10e9))
PLAIN = Constants(
    matmul_efficiency=1,
    attention_efficiency=1,
    memory_efficiency=1,
    op_launch_seconds=0,
    collective_launch_ops=0,
    intra_host_efficiency=1,
    inter_host_efficiency=1,
    overlap_penalty=0,
    step_overhead_seconds=0,
    round_overhead_seconds=0,
)
LOAD = ComputeLoad({"matrix": 10**9}, 10**6, 10)


def module(
    names: int, load: ComputeLoad = LOAD, collectives: tuple[Collective, ...] = (), parameters: int = 0
) -> ModuleProfile:
    work = Work(load, load, collectives)
    return ModuleProfile(("b",) * names, parameters, parameters, 0, 0, work, 0, input_bytes=10**6)


def profile(blocks: int, **more: object) -> Profile:
    return Profile(1, (module(blocks, **more),), module(0, ComputeLoad()), 0, 2)


def test_products_attention_and_bytes_add_up() -> None:
    load = ComputeLoad({"matrix": 10**9, "attention": 10**9}, bytes_moved=10**6)
    # 1e9 FLOPs at half of 1e12 per second, 1e9 at a quarter, 1e6 bytes at 1e9 per second
    assert compute.seconds(load, DEVICE, "fp32", PLAIN) == pytest.approx(2e-3 + 4e-3 + 1e-3)


def test_placement_of_axes_on_hosts() -> None:
    mesh = Mesh(pipeline=2, replicate=2, shard=2, tensor=4)
    placements = {axis: place_axis(mesh, axis, HOSTS) for axis in ("tensor", "shard", "replicate", "pipeline")}
    assert {axis: (placement.ranks_per_host, placement.hosts) for axis, placement in placements.items()} == {
        "tensor": (4, 1),
        "shard": (2, 1),
        "replicate": (1, 2),
        "pipeline": (1, 2),
    }


def test_a_gather_within_and_between_hosts() -> None:
    inside = place_axis(Mesh(shard=8), "shard", HOSTS)
    assert inside.seconds("all_gather", 8e9) == pytest.approx(7e9 / 100e9 + 7e-6)
    # 32 ranks in 4 hosts: three quarters come from other hosts over 8 parallel links, in two steps of a tree
    across = place_axis(Mesh(shard=32), "shard", HOSTS)
    assert across.seconds("all_gather", 8e9) == pytest.approx(6e9 / 80e9 + 7e-6 + 20e-6)
    assert across.seconds("all_reduce", 8e9) == pytest.approx(2 * (6e9 / 80e9 + 27e-6))


def test_short_operations_wait_for_the_host() -> None:
    slow = Constants(**{**vars(PLAIN), "op_launch_seconds": 1e-3})
    terms = Predictor(HOSTS, constants=slow).seconds(profile(4), Plan())
    # A block computes for 3 ms and its ten operations take 10 ms to launch; the same in backward; four blocks.
    assert terms["forward"] == pytest.approx(4 * 3e-3)
    assert terms["host"] == pytest.approx(2 * 4 * 7e-3)


def test_a_pipeline_waits_for_its_stages() -> None:
    plan = Plan(Mesh(pipeline=4), 1, rounds=8)
    terms = Predictor(HostGroup(DEVICE, 4, 1, 0, Link(), Link(0, 1e9)), constants=PLAIN).seconds(profile(8), plan)
    # Two blocks per stage take 12 ms, a transfer 1 ms in each direction: eight rounds, and three to fill and drain.
    assert terms["forward"] + terms["backward"] == pytest.approx(8 * 12e-3)
    assert terms["pipeline"] == pytest.approx(8 * 2e-3)
    assert terms["bubble"] == pytest.approx(3 * 12e-3 + (2 * 3 - 2) * 1e-3)


def test_different_blocks_are_weighted_by_their_time() -> None:
    heavy, light = module(1, ComputeLoad({"matrix": 3 * 10**9}, 0)), module(3, ComputeLoad({"matrix": 10**9}, 0))
    blocks = Profile(1, (heavy, light), module(0, ComputeLoad()), 0, 2, order=(0, 1, 1, 1))
    plan = Plan(Mesh(pipeline=2), 1, rounds=2, stages=(1, 3))
    terms = Predictor(HostGroup(DEVICE, 2, 1, 0, Link(), Link(0, 1e9)), constants=PLAIN).seconds(blocks, plan)
    # One block of 6 ms on one rank, three of 2 ms on the other: each has half of the 12 ms of a round.
    assert terms["forward"] == pytest.approx(2 * 6e-3)


def test_full_recomputation_repeats_forward_with_its_collectives() -> None:
    sent = (Collective("all_reduce", 10**8, "forward"), Collective("all_reduce", 10**8, "backward"))
    split = profile(1, collectives=sent)
    plans = [Plan(Mesh(tensor=8), recompute=recompute) for recompute in ("none", "full", "selective")]
    none, full, selective = (Predictor(HOSTS, constants=PLAIN).seconds(split, plan) for plan in plans)
    all_reduce = 2 * (7e8 / 8 / 100e9 + 7e-6)
    assert none["tensor"] == pytest.approx(2 * all_reduce)
    assert full["tensor"] == pytest.approx(3 * all_reduce)
    assert (none["recompute"], full["recompute"]) == (0, pytest.approx(3e-3))
    assert selective["recompute"] == pytest.approx(1e-3)  # its bytes, not its matrix products


def test_host_overhead_of_the_engine_is_not_scaled_by_the_calibration() -> None:
    core = DeviceSpec("c", "cpu", 10**9, 1e9, {"fp32": 1e12}, 0.5, 0.25, op_seconds=1e-5)
    hosts = HostGroup(core, 2, 1, 1, intra_host=Link(0, 1e12), inter_host=Link(0, 1e12))
    constants = Constants(**{**vars(PLAIN), "full_recompute_factor": 3.0, "fsdp_ops_per_parameter": 4.0})
    block = replace(module(1), tensor_count=6)
    terms = Predictor(hosts, Engine(), constants, lambda *_: (2.0, 1.0)).seconds(
        Profile(1, (block,), module(0, ComputeLoad()), 0, 2), Plan.parse("shard2 mb1 recompute=full")
    )
    # Ten operations of 10 µs in forward and in recomputation: a calibration of 2, plus 2 for checkpointing.
    assert terms["forward"] == terms["recompute"] == pytest.approx(2 * 3e-3)
    assert terms["host"] == pytest.approx((2 * (2 + 2) + 1) * 10 * 1e-5)
    # Six parameters are all-gathered twice and reduce-scattered once.
    assert terms["shard"] == pytest.approx(3 * 6 * 4 * 1e-5)


def test_sharding_is_exposed_where_it_takes_longer_than_compute() -> None:
    large = profile(1, parameters=10**8)
    engine = Engine(all_gather_bytes=4, gradient_bytes=4)
    gather = 4e8 * 7 / 8 / 100e9 + 7e-6 + 2 * 2 * 4e8 / 1e9  # sent, and copied twice: read and written
    terms = Predictor(HOSTS, engine, PLAIN).seconds(large, Plan(Mesh(shard=8)))
    assert terms["shard"] == pytest.approx((gather - 3e-3) + (2 * gather - 3e-3))
    slowed = Constants(**{**vars(PLAIN), "overlap_penalty": 0.5})
    assert Predictor(HOSTS, engine, slowed).seconds(large, Plan(Mesh(shard=8)))["shard"] == pytest.approx(
        (gather - 3e-3) + (2 * gather - 3e-3) + 0.5 * 6e-3
    )


def test_gradients_are_all_reduced_over_replicas_once_per_step() -> None:
    large = profile(1, parameters=10**9)
    no_overlap = Engine(gradient_bytes=2, overlaps=False)
    terms = Predictor(HOSTS, no_overlap, PLAIN).seconds(large, Plan(Mesh(replicate=8), rounds=4))
    assert terms["replicate"] == pytest.approx(2 * (2e9 * 7 / 8 / 100e9 + 7e-6))
    assert terms["update"] == pytest.approx(28e9 / 1e9)


def test_a_pipeline_that_reduce_scatters_each_round_all_reduces_each_round() -> None:
    hosts = HostGroup(DEVICE, 8, 1, 0, Link(), Link(0, 1e9))
    blocks = Profile(1, (module(2, ComputeLoad(), parameters=10**6),), module(0, ComputeLoad()), 0, 2)
    per_step, per_round = (
        Predictor(hosts, Engine(gradient_bytes=4), PLAIN).seconds(blocks, Plan.parse(f"{axes} mb1×4 reduce=round"))
        for axes in ("replicate2·shard2", "pipeline2·replicate2·shard2")
    )
    # Half of 2e6 gradients of 4 bytes, all-reduced between two ranks; a stage has half of those, four times.
    assert per_step["replicate"] == pytest.approx(4e6 / 1e9)
    assert per_round["replicate"] == pytest.approx(4 * 2e6 / 1e9)


def test_devices_are_found_by_short_names() -> None:
    assert hosts_of("h100", 2).device.name == "H100-80GB-SXM"
    assert hosts_of("A100", 1).device.memory == 80_000_000_000
    assert hosts_of("rtx4090", 1).device.name == "RTX 4090"
    with pytest.raises(OnecurveError, match="did you mean 'H100-80GB-SXM'"):
        hosts_of("H10O-80GB-SXM", 1)


def test_all_to_all_sends_a_tensor_of_its_own_from_every_rank() -> None:
    across = place_axis(Mesh(expert=32), "expert", HOSTS)
    assert across.seconds("all_to_all", 4e9) == pytest.approx(3e9 / 10e9 + 7e-6 + 20e-6)
    sent = (Collective("all_to_all", 4 * 10**9, "forward", "expert"),)
    terms = Predictor(HOSTS, constants=PLAIN).seconds(profile(1, collectives=sent), Plan(Mesh(expert=32)))
    assert terms["tensor"] == pytest.approx(0.3 + 27e-6)


def predict(
    plan: str | Plan,
    blocks: Profile,
    hosts: HostGroup = HOSTS,
    engine: Engine | None = None,
    **constants: float,
) -> dict[str, float]:
    """Terms of a step; constants that are not given cost nothing."""
    parsed = Plan.parse(plan) if isinstance(plan, str) else plan
    return Predictor(hosts, engine, replace(PLAIN, **constants)).seconds(blocks, parsed)


ROW = HostGroup(DEVICE, 8, 1, 0, intra_host=Link(0, 1e12), inter_host=Link(0, 1e9))
"""Hosts of one device, connected at 1 GB/s: the input of a block takes 1 ms to the next stage."""


@pytest.mark.parametrize(
    ("plan", "pipeline", "bubble"),
    [
        # Eight blocks of 6 ms: 12 ms per rank and round, 36 ms on the others; a round makes six transfers of 1 ms.
        ("pipeline4 mb1×8", 8 * 2, 36 + 4),
        ("pipeline4 mb1 schedule=gpipe", 2, 36 + 4),
        ("pipeline4 mb1×8 schedule=zero-bubble", 8 * 2, 40 / 3),
        ("pipeline4 mb1 schedule=zero-bubble", 2, 40 * 2 / 3),
        ("pipeline4 mb1×2 schedule=zero-bubble", 2 * 2, 40 * (2 - 1 / 3) / 3),
        # Two stages per rank make fourteen transfers, of which the busiest rank waits for four.
        ("pipeline4 mb1×8 schedule=interleaved", 8 * 4, 36 + 10 - 36 / 2),
        ("pipeline4 mb1×2 schedule=interleaved", 2 * 4, 36 + 10 - 12 / 2),
        # With two ranks a transfer in each direction overlaps.
        ("pipeline2 mb1×4", 4, 24 + 1),
        ("pipeline2 mb1×4 schedule=interleaved", 4 * 4, 24 + 2 - 24 / 2),
        ("mb1×4", 0, 0),
    ],
)
def test_transfers_and_bubble_of_every_schedule(plan: str, pipeline: float, bubble: float) -> None:
    terms = predict(plan, profile(8), ROW)
    assert 1000 * terms["pipeline"] == pytest.approx(pipeline)
    assert 1000 * terms["bubble"] == pytest.approx(bubble)


def test_stages_of_unequal_size_fill_no_more_than_the_others_take() -> None:
    plan = Plan(Mesh(pipeline=2), 1, 8, schedule="interleaved", stages=(3, 1, 3, 1))
    terms = predict(plan, profile(8), ROW)
    # The busiest rank takes 36 ms of 48; the bubble of 12 ms and two transfers shrinks by half of the 12 ms.
    assert 1000 * terms["forward"] == pytest.approx(8 * 18)
    assert 1000 * terms["bubble"] == pytest.approx(12 + 2 - 6)


@pytest.mark.parametrize(
    ("stages", "head", "forward"),
    [
        ((6, 2), 1, 6 * 3),  # six blocks against two and a head of one
        ((6, 2), 3, 6 * 3),
        ((6, 2), 5, 2 * 3 + 5 * 3),
        ((4, 4), 1, 4 * 3 + 1 * 3),
        ((2, 6), 1, 6 * 3 + 1 * 3),
    ],
)
def test_the_busiest_rank_may_be_the_last_with_the_head(stages: tuple[int, int], head: int, forward: float) -> None:
    scaled = ComputeLoad({"matrix": head * 10**9}, head * 10**6)
    model = replace(profile(8), outside=module(0, scaled))
    terms = predict(Plan(Mesh(pipeline=2), 1, 2, stages=stages), model, ROW)
    assert 1000 * terms["forward"] == 1000 * terms["backward"] == pytest.approx(2 * forward)
    # The bubble is the rest of the model, and the second transfer.
    assert 1000 * terms["bubble"] == pytest.approx(2 * (8 + head) * 3 - 2 * forward + 1)


def test_activations_go_through_the_link_between_the_stages() -> None:
    two = Plan(Mesh(pipeline=2), 1, 2)
    near = replace(HOSTS, intra_host=Link(2e-3, 1e9), inter_host=Link(5e-3, 1e8))
    apart = replace(near, count=2, devices_per_host=1)
    assert predict(two, profile(2), near)["pipeline"] == pytest.approx(2 * (2e-3 + 1e-3))
    assert predict(two, profile(2), apart)["pipeline"] == pytest.approx(2 * (5e-3 + 10e-3))
    assert predict(two, profile(2), near, intra_host_efficiency=0.5)["pipeline"] == pytest.approx(2 * (2e-3 + 2e-3))
    assert predict(two, profile(2), apart, inter_host_efficiency=0.5)["pipeline"] == pytest.approx(2 * (5e-3 + 20e-3))


def test_sequence_parallelism_divides_what_goes_to_the_next_stage() -> None:
    hosts = replace(HOSTS, count=2, devices_per_host=4, inter_host=Link(0, 1e8))
    plan = Plan(Mesh(pipeline=2, tensor=4), 1, 2)
    assert predict(plan, profile(2), hosts)["pipeline"] == pytest.approx(2 * 10e-3)
    assert predict(replace(plan, sequence=True), profile(2), hosts)["pipeline"] == pytest.approx(2 * 2.5e-3)


def test_the_largest_input_of_a_block_crosses() -> None:
    wide = replace(module(1), input_bytes=3 * 10**6)
    model = replace(profile(1), blocks=(module(1), wide, module(1)), order=(0, 1, 2))
    plan = Plan(Mesh(pipeline=2), 1, 2)
    assert predict(plan, model, ROW)["pipeline"] == pytest.approx(2 * 3e-3)
    assert predict(plan, replace(model, blocks=(), order=()), ROW)["pipeline"] == 0


@pytest.mark.parametrize(
    ("plan", "launches"),
    [
        ("mb1×4", 0),
        ("shard2 mb1", 3),  # two gathers and a scatter
        ("shard2 mb1 zero2", 2),
        ("shard2 mb1×4", 4 * 2 + 1),  # scattered once per step
        ("shard2 mb1×4 reduce=round", 4 * 3),
        ("shard2 mb1×4 zero2", 4 + 1),
        ("shard2 mb1×4 zero2 reduce=round", 4 + 4),
        ("pipeline2·shard2 mb1×4", (4 * 2 + 1) / 2),  # each rank has half of the blocks
        ("pipeline2·shard2 mb1×4 zero2", (1 + 1) / 2),  # gathered once per step
    ],
)
def test_how_often_parameters_are_gathered_and_gradients_scattered(plan: str, launches: float) -> None:
    core = DeviceSpec("c", "cpu", 10**9, 1e9, {"fp32": 1e12}, 0.5, 0.25, op_seconds=1e-5)
    hosts = HostGroup(core, 4, 1, 1, intra_host=Link(0, 1e12), inter_host=Link(0, 1e12))
    blocks = replace(module(2, ComputeLoad()), tensor_count=6)
    model = Profile(1, (blocks,), module(0, ComputeLoad()), 0, 2)
    # Two blocks of six parameters, four operations of 10 µs each
    assert predict(plan, model, hosts, fsdp_ops_per_parameter=4.0)["shard"] == pytest.approx(
        launches * 2 * 6 * 4 * 1e-5
    )


def test_gathers_and_scatters_have_their_own_size() -> None:
    frozen = replace(module(1, ComputeLoad()), parameters=10**6, trainable=10**5, work=Work())
    model = Profile(1, (frozen,), module(0, ComputeLoad()), 0, 2)
    hosts = HostGroup(replace(DEVICE, memory_bandwidth=1e8), 2, 1, 0, Link(), Link(0, 1e9))
    terms = predict(
        "shard2 mb1 zero2", model, hosts, Engine(all_gather_bytes=2, gradient_bytes=4), memory_efficiency=0.5
    )
    # Half of 2 MB and of 0.4 MB at 1 GB/s; each is read and written twice at 50 MB/s.
    assert terms["shard"] == pytest.approx(1e-3 + 4 * 2e6 / 5e7 + 0.2e-3 + 4 * 0.4e6 / 5e7)


def test_what_is_outside_the_blocks_is_sharded_too() -> None:
    model = Profile(1, (), replace(module(0, ComputeLoad()), parameters=10**6, trainable=0), 0, 2)
    hosts = HostGroup(replace(DEVICE, memory_bandwidth=1e15), 2, 1, 0, Link(), Link(0, 1e9))
    assert predict("shard2 mb1×3", model, hosts)["shard"] == pytest.approx(3 * 2 * 2e-3, rel=1e-3)


def test_a_link_may_have_its_own_overlap_penalty() -> None:
    held = profile(1, parameters=10**6)
    slowed = replace(HOSTS, intra_host=Link(0, 1e12, overlap_penalty=0.5))
    engine = Engine(all_gather_bytes=0.5, gradient_bytes=0)
    # Copies of 0.5 MB take 2 ms, less than the 3 ms of a pass: half of them is noticed, forward and backward.
    assert predict("shard2 mb1", held, slowed, engine, overlap_penalty=0.9)["shard"] == pytest.approx(2e-3, rel=1e-2)
    assert predict("shard2 mb1", held, HOSTS, engine, overlap_penalty=0.9)["shard"] == pytest.approx(3.6e-3, rel=1e-2)


def test_gradients_are_reduced_while_backward_runs() -> None:
    held = profile(1, parameters=10**6)
    # 4 MB between two hosts: 4 ms, of which the 3 ms of one backward hide all but one.
    assert predict("replicate2 mb1", held, ROW)["replicate"] == pytest.approx(1e-3)
    assert predict("replicate2 mb1×5", held, ROW)["replicate"] == pytest.approx(1e-3)
    assert predict("replicate2 mb1", held, ROW, overlap_penalty=0.5)["replicate"] == pytest.approx(2.5e-3)
    assert predict("replicate2 mb1", held, ROW, Engine(overlaps=False))["replicate"] == pytest.approx(4e-3)
    assert predict("replicate2·shard2 mb1", held, ROW, Engine(overlaps=False))["replicate"] == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("plan", "times"),
    [
        ("pipeline2·replicate2·shard2 mb1×4 reduce=round", 4),
        ("pipeline2·replicate2·shard2 mb1×4", 1),
        ("pipeline2·replicate2 mb1×4 reduce=round", 1),
        ("replicate2·shard2 mb1×4 reduce=round", 1),
    ],
)
def test_replicas_are_reduced_once_per_step_or_once_per_round(plan: str, times: int) -> None:
    blocks = Profile(1, (module(2, ComputeLoad(), parameters=10**6),), module(0, ComputeLoad()), 0, 2)
    mesh = Plan.parse(plan).mesh
    once = 4 * 2e6 / mesh.pipeline / mesh.shard / 1e9
    assert predict(plan, blocks, ROW)["replicate"] == pytest.approx(times * once)


def test_the_update_touches_the_trained_shard() -> None:
    model = Profile(1, (replace(module(4), trainable=250),), replace(module(0), trainable=1000), 0, 2)
    engine = Engine(update_bytes=28)
    assert predict("mb1", model, engine=engine, memory_efficiency=0.5)["update"] == pytest.approx(2000 * 28 / 5e8)
    assert predict("shard4 mb1", model, engine=engine)["update"] == pytest.approx(500 * 28 / 1e9)


def test_overhead_of_a_step_and_of_its_rounds() -> None:
    core = replace(DEVICE, kind="cpu", op_seconds=1e-3)
    overhead = {
        "step_overhead_seconds": 0.1,
        "step_overhead_ops": 20.0,
        "round_overhead_seconds": 0.5,
        "round_overhead_ops": 300.0,
    }
    terms = predict("mb1×3", profile(1), HostGroup(core), **overhead)
    assert terms["other"] == pytest.approx(0.1 + 0.02 + 3 * (0.5 + 0.3))


def test_an_engine_of_half_the_efficiency_takes_twice_as_long() -> None:
    model, plan = profile(4, parameters=10**6), "pipeline2·replicate2 mb1×4"
    full, half = (predict(plan, model, ROW, Engine(efficiency=efficiency)) for efficiency in (1.0, 0.5))
    assert half == {name: pytest.approx(2 * value) for name, value in full.items()}
    bounds = [
        Predictor(ROW, Engine(efficiency=efficiency), PLAIN).compute_lower_bound(model, Plan.parse(plan))
        for efficiency in (1.0, 0.5)
    ]
    assert bounds[1] == pytest.approx(2 * bounds[0])


def test_the_lower_bound_is_all_compute_divided_over_the_pipeline() -> None:
    model = replace(profile(8), outside=module(0))
    predictor = Predictor(ROW, Engine(), replace(PLAIN, step_overhead_seconds=0.1, round_overhead_seconds=0.2))
    # Eight blocks and the outside of 6 ms each
    assert predictor.compute_lower_bound(model, Plan.parse("pipeline2 mb1×4")) == pytest.approx(4 * 54e-3 / 2 + 0.9)
    assert predictor.compute_lower_bound(model, Plan.parse("mb1")) == pytest.approx(54e-3 + 0.3)


def test_the_bubble_contains_the_sharding_of_the_other_stages() -> None:
    core = replace(DEVICE, kind="cpu", op_seconds=1e-3)
    hosts = HostGroup(core, 4, 1, 1, intra_host=Link(0, 1e12), inter_host=Link(0, 1e9))
    load = ComputeLoad({"matrix": 10**9}, 10**6)
    blocks, outside = replace(module(8, load), tensor_count=1), replace(module(0, load), tensor_count=2)
    plan = "pipeline2·shard2 mb1×4 reduce=round"
    terms = predict(plan, Profile(1, (blocks,), outside, 0, 2), hosts, fsdp_ops_per_parameter=1.0)
    # A block takes 6 ms and three launches of 1 ms; what is outside, on the last stage, 6 ms and six launches.
    assert 1000 * terms["shard"] == pytest.approx(4 * (4 * 3 + 6))
    assert 1000 * terms["bubble"] == pytest.approx(4 * 9 + 1)
    uneven = replace(Plan.parse(plan), stages=(6, 2))
    terms = predict(uneven, Profile(1, (blocks,), outside, 0, 2), hosts, fsdp_ops_per_parameter=1.0)
    assert 1000 * terms["shard"] == pytest.approx(4 * 6 * 3)
    assert 1000 * terms["bubble"] == pytest.approx(2 * 9 + 12 + 1)


def test_what_is_outside_the_blocks_computes_sends_and_launches_too() -> None:
    core = replace(DEVICE, kind="cpu", op_seconds=1e-3)
    hosts = HostGroup(core, 1, 8, 8, intra_host=Link(0, 1e9))
    sent = (Collective("all_reduce", 10**6, "forward"), Collective("all_reduce", 10**6, "backward"))
    one, both = (
        predict("tensor2 mb1×3", Profile(1, (module(1, collectives=sent),), outside, 0, 2), hosts)
        for outside in (module(0, ComputeLoad()), module(0, collectives=sent))
    )
    for name in ("forward", "backward", "tensor", "host"):
        assert one[name] > 0
        assert both[name] == pytest.approx(2 * one[name])

"""Each term against a number worked by hand."""

from dataclasses import replace

import pytest

from onecurve.describe.catalogue import hosts_of
from onecurve.describe.cluster import DeviceSpec, HostGroup, Link
from onecurve.describe.constants import Constants
from onecurve.describe.engine import Engine
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Collective, Load, ModuleProfile, Profile, Work
from onecurve.predict import compute
from onecurve.predict.collective import place
from onecurve.predict.step import Predictor

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
LOAD = Load({"matrix": 10**9}, 10**6, 10)


def module(
    names: int, load: Load = LOAD, collectives: tuple[Collective, ...] = (), parameters: int = 0
) -> ModuleProfile:
    work = Work(load, load, collectives)
    return ModuleProfile(("b",) * names, parameters, parameters, 0, 0, work, 0, input_bytes=10**6)


def profile(blocks: int, **more: object) -> Profile:
    return Profile(1, (module(blocks, **more),), module(0, Load()), 0, 2)


def test_products_attention_and_bytes_add_up() -> None:
    load = Load({"matrix": 10**9, "attention": 10**9}, bytes_moved=10**6)
    # 1e9 at half of 1e12, 1e9 at a quarter, 1e6 bytes at 1e9 a second
    assert compute.seconds(load, DEVICE, "fp32", PLAIN) == pytest.approx(2e-3 + 4e-3 + 1e-3)


def test_where_an_axis_lies() -> None:
    mesh = Mesh(pipeline=2, replicate=2, shard=2, tensor=4)
    found = {axis: place(mesh, axis, HOSTS) for axis in ("tensor", "shard", "replicate", "pipeline")}
    assert {axis: (each.ranks_per_host, each.hosts) for axis, each in found.items()} == {
        "tensor": (4, 1),
        "shard": (2, 1),
        "replicate": (1, 2),
        "pipeline": (1, 2),
    }


def test_a_gather_within_and_between_hosts() -> None:
    inside = place(Mesh(shard=8), "shard", HOSTS)
    assert inside.seconds("all_gather", 8e9) == pytest.approx(7e9 / 100e9 + 7e-6)
    # 32 ranks in 4 hosts: three quarters come from elsewhere, through 8 parts of the network; two doublings of hosts
    across = place(Mesh(shard=32), "shard", HOSTS)
    assert across.seconds("all_gather", 8e9) == pytest.approx(6e9 / 80e9 + 7e-6 + 20e-6)
    assert across.seconds("all_reduce", 8e9) == pytest.approx(2 * (6e9 / 80e9 + 27e-6))


def test_the_host_sets_the_pace_of_short_operations() -> None:
    slow = Constants(**{**vars(PLAIN), "op_launch_seconds": 1e-3})
    found = Predictor(HOSTS, constants=slow).seconds(profile(4), Plan())
    # A block takes 3 ms forward, its ten operations 10 ms to be started; backward alike; four blocks.
    assert found["forward"] == pytest.approx(4 * 3e-3)
    assert found["host"] == pytest.approx(2 * 4 * 7e-3)


def test_a_pipeline_waits_for_its_stages() -> None:
    plan = Plan(Mesh(pipeline=4), 1, rounds=8)
    found = Predictor(HostGroup(DEVICE, 4, 1, 0, Link(), Link(0, 1e9)), constants=PLAIN).seconds(profile(8), plan)
    # Two blocks a stage, 12 ms and 1 ms each way for what crosses: eight rounds, and three more to fill and empty it.
    assert found["forward"] + found["backward"] == pytest.approx(8 * 12e-3)
    assert found["pipeline"] == pytest.approx(8 * 2e-3)
    assert found["bubble"] == pytest.approx(3 * 12e-3 + (2 * 3 - 2) * 1e-3)


def test_blocks_that_are_unlike_weigh_what_they_take() -> None:
    heavy, light = module(1, Load({"matrix": 3 * 10**9}, 0)), module(3, Load({"matrix": 10**9}, 0))
    blocks = Profile(1, (heavy, light), module(0, Load()), 0, 2, order=(0, 1, 1, 1))
    plan = Plan(Mesh(pipeline=2), 1, rounds=2, stages=(1, 3))
    found = Predictor(HostGroup(DEVICE, 2, 1, 0, Link(), Link(0, 1e9)), constants=PLAIN).seconds(blocks, plan)
    # One block of 6 ms on one rank, three of 2 ms on the other: each has half of the 12 ms of a round.
    assert found["forward"] == pytest.approx(2 * 6e-3)


def test_full_recomputation_is_a_forward_more_with_what_it_sends() -> None:
    sent = (Collective("all_reduce", 10**8, "forward"), Collective("all_reduce", 10**8, "backward"))
    cut = profile(1, collectives=sent)
    plans = [Plan(Mesh(tensor=8), recompute=each) for each in ("none", "full", "selective")]
    none, full, light = (Predictor(HOSTS, constants=PLAIN).seconds(cut, plan) for plan in plans)
    one = 2 * (7e8 / 8 / 100e9 + 7e-6)
    assert none["tensor"] == pytest.approx(2 * one)
    assert full["tensor"] == pytest.approx(3 * one)
    assert (none["recompute"], full["recompute"]) == (0, pytest.approx(3e-3))
    assert light["recompute"] == pytest.approx(1e-3)  # its bytes, not its products


def test_what_an_engine_costs_the_host_does_not_depend_on_how_fast_the_model_is() -> None:
    core = DeviceSpec("c", "cpu", 10**9, 1e9, {"fp32": 1e12}, 0.5, 0.25, op_seconds=1e-5)
    hosts = HostGroup(core, 2, 1, 1, intra_host=Link(0, 1e12), inter_host=Link(0, 1e12))
    constants = Constants(**{**vars(PLAIN), "full_recompute_factor": 3.0, "fsdp_ops_per_parameter": 4.0})
    block = replace(module(1), tensor_count=6)
    found = Predictor(hosts, Engine(), constants, lambda *_: (2.0, 1.0)).seconds(
        Profile(1, (block,), module(0, Load()), 0, 2), Plan.parse("shard2 mb1 recompute=full")
    )
    # Ten operations of 10 µs: forward and once more each takes twice as long, and is forgotten, which is two more.
    assert found["forward"] == found["recompute"] == pytest.approx(2 * 3e-3)
    assert found["host"] == pytest.approx((2 * (2 + 2) + 1) * 10 * 1e-5)
    # Six parameters are gathered twice and scattered once.
    assert found["shard"] == pytest.approx(3 * 6 * 4 * 1e-5)


def test_sharding_is_felt_where_it_takes_longer_than_computing() -> None:
    held = profile(1, parameters=10**8)
    engine = Engine(all_gather_bytes=4, gradient_bytes=4)
    gather = 4e8 * 7 / 8 / 100e9 + 7e-6 + 2 * 2 * 4e8 / 1e9  # sent, and copied twice: read and written
    found = Predictor(HOSTS, engine, PLAIN).seconds(held, Plan(Mesh(shard=8)))
    assert found["shard"] == pytest.approx((gather - 3e-3) + (2 * gather - 3e-3))
    felt = Constants(**{**vars(PLAIN), "overlap_penalty": 0.5})
    assert Predictor(HOSTS, engine, felt).seconds(held, Plan(Mesh(shard=8)))["shard"] == pytest.approx(
        (gather - 3e-3) + (2 * gather - 3e-3) + 0.5 * 6e-3
    )


def test_gradients_are_summed_over_copies_once_a_step() -> None:
    held = profile(1, parameters=10**9)
    apart = Engine(gradient_bytes=2, overlaps=False)
    found = Predictor(HOSTS, apart, PLAIN).seconds(held, Plan(Mesh(replicate=8), rounds=4))
    assert found["replicate"] == pytest.approx(2 * (2e9 * 7 / 8 / 100e9 + 7e-6))
    assert found["update"] == pytest.approx(28e9 / 1e9)


def test_a_pipeline_that_scatters_each_round_sums_over_copies_each_round() -> None:
    hosts = HostGroup(DEVICE, 8, 1, 0, Link(), Link(0, 1e9))
    blocks = Profile(1, (module(2, Load(), parameters=10**6),), module(0, Load()), 0, 2)
    once, often = (
        Predictor(hosts, Engine(gradient_bytes=4), PLAIN).seconds(blocks, Plan.parse(f"{axes} mb1×4 reduce=round"))
        for axes in ("replicate2·shard2", "pipeline2·replicate2·shard2")
    )
    # Half of 2e6 gradients of 4 bytes, once back and forth between two; a stage has half of those, four times.
    assert once["replicate"] == pytest.approx(4e6 / 1e9)
    assert often["replicate"] == pytest.approx(4 * 2e6 / 1e9)


def test_devices_are_found_by_short_names() -> None:
    assert hosts_of("h100", 2).device.name == "H100-80GB-SXM"
    assert hosts_of("A100", 1).device.memory == 80_000_000_000
    assert hosts_of("rtx4090", 1).device.name == "RTX 4090"
    with pytest.raises(OnecurveError, match="did you mean 'H100-80GB-SXM'"):
        hosts_of("H10O-80GB-SXM", 1)


def test_where_all_send_to_all_each_uses_its_own_part_of_the_network() -> None:
    across = place(Mesh(expert=32), "expert", HOSTS)
    assert across.seconds("all_to_all", 4e9) == pytest.approx(3e9 / 10e9 + 7e-6 + 20e-6)
    sent = (Collective("all_to_all", 4 * 10**9, "forward", "expert"),)
    found = Predictor(HOSTS, constants=PLAIN).seconds(profile(1, collectives=sent), Plan(Mesh(expert=32)))
    assert found["tensor"] == pytest.approx(0.3 + 27e-6)

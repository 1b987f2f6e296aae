"""One block whose passes take 5 ms and 6 ms of compute, with every constant that changes them, one at a time."""

from dataclasses import replace

import pytest

from onecurve.describe.cluster import DeviceSpec, HostGroup, Link
from onecurve.describe.constants import Constants
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Collective, ComputeLoad, ModuleProfile, Profile, Work
from onecurve.estimate.collective import AxisPlacement, single_host_placement
from onecurve.estimate.round import RoundModel, RoundTimes

GPU = DeviceSpec(
    name="d",
    kind="cuda",
    memory_bandwidth=1e9,
    flops={"fp32": 1e12},
    matmul_efficiency=0.5,
    attention_efficiency=0.25,
)
CPU = replace(GPU, kind="cpu", op_seconds=1e-3)
PLAIN = Constants(
    matmul_efficiency=1,
    attention_efficiency=1,
    memory_efficiency=1,
    op_launch_seconds=0,
    collective_launch_ops=0,
    intra_host_efficiency=1,
    inter_host_efficiency=1,
    overlap_penalty=0,
)
# 1e9 FLOPs at 5e11 per second, 5e8 of attention at 2.5e11, 1e6 bytes at 1e9: 2 + 2 + 1 ms
FORWARD = ComputeLoad({"matrix": 10**9, "attention": 5 * 10**8}, bytes_moved=10**6, operations=10)
BACKWARD = ComputeLoad({"matrix": 2 * 10**9}, bytes_moved=2 * 10**6, operations=20)


def module(names: int, *collectives: Collective) -> ModuleProfile:
    return ModuleProfile(
        names=("b",) * names,
        parameters=0,
        trainable=0,
        parameter_bytes=0,
        trainable_bytes=0,
        work=Work(FORWARD, BACKWARD, collectives),
        activation_bytes=0,
        input_bytes=0,
    )


def round_of(
    plan: str,
    *collectives: Collective,
    device: DeviceSpec = GPU,
    calibration: tuple[float, float] = (1.0, 1.0),
    recomputes_attention: bool = False,
    blocks: int = 1,
    **constants: float,
) -> RoundTimes:
    def place(plan: Plan, axis: str) -> AxisPlacement:
        return single_host_placement(plan.mesh.data if axis == "data" else plan.mesh.tensor, Link(0, 1e9))

    model = RoundModel(
        HostGroup(device), replace(PLAIN, **constants), place, lambda *_: calibration, recomputes_attention
    )
    profile = Profile(
        samples=1,
        blocks=(module(blocks, *collectives),),
        outside=module(0),
        shared_activation_bytes=0,
        optimizer_tensors=2,
    )
    return model.of(profile, Plan.parse(plan))


def milliseconds(times: RoundTimes) -> dict[str, float]:
    """The nonzero times of all blocks."""
    return {name: pytest.approx(1000 * seconds) for name, seconds in vars(times.blocks).items() if seconds}


SENT = Collective("all_reduce", 2 * 10**6, "forward")
"""Between two ranks at 1 GB/s: 2 ms."""
SENT_BACK = Collective("all_reduce", 3 * 10**6, "backward")
ASKED = Collective("all_reduce", 4 * 10**6, "forward", "data")


def test_compute_alone() -> None:
    times = round_of("mb1", blocks=3)
    assert milliseconds(times) == {"forward": 15, "backward": 18}
    assert times.blocks.total == pytest.approx(33e-3)
    assert (times.outside.forward, times.outside.backward) == (pytest.approx(5e-3), pytest.approx(6e-3))


def test_units_are_the_kinds_of_blocks_and_the_outside() -> None:
    block, outside = round_of("tensor2 mb1 recompute=full", SENT, SENT_BACK, blocks=3).units
    assert (block.count, outside.count) == (3, 1)
    assert (block.forward, block.backward) == (pytest.approx(7e-3), pytest.approx(6e-3 + 3e-3 + 7e-3))
    assert (outside.forward, outside.backward) == (pytest.approx(5e-3), pytest.approx(6e-3))


@pytest.mark.parametrize(
    ("plan", "sent"),
    [("mb1", (0, 0)), ("replicate2 mb1", (0, 4)), ("tensor2 mb1", (5, 0)), ("shard2·tensor2 mb1", (5, 4))],
)
def test_collectives_take_time_along_axes_that_are_split(plan: str, sent: tuple[float, float]) -> None:
    times = milliseconds(round_of(plan, SENT, SENT_BACK, ASKED))
    assert (times.get("tensor", 0), times.get("batch_norm", 0)) == sent


def test_a_slow_host_exceeds_the_device_by_its_launch_time() -> None:
    # Ten and twenty operations of 1 ms, of which 5 ms and 6 ms are hidden.
    assert milliseconds(round_of("mb1", op_launch_seconds=1e-3)) == {"forward": 5, "backward": 6, "host": 5 + 14}
    assert milliseconds(round_of("mb1", op_launch_seconds=1e-4)) == {"forward": 5, "backward": 6}


def test_launching_collectives_takes_as_long_as_several_operations() -> None:
    times = round_of("tensor2 mb1", SENT, SENT_BACK, ASKED, op_launch_seconds=1e-3, collective_launch_ops=2.5)
    # Forward and backward launch one collective each; while it runs the host is not in the way.
    assert milliseconds(times)["host"] == (12.5 - 5 - 2) + (22.5 - 6 - 3)


def test_on_a_cpu_launching_is_not_hidden() -> None:
    times = round_of("tensor2 mb1", SENT, device=CPU, collective_launch_ops=2.5)
    assert milliseconds(times) == {"forward": 5, "backward": 6, "tensor": 2, "host": 12.5 + 20}


def test_calibration_stretches_the_operations_of_the_model_but_not_collectives() -> None:
    times = round_of("tensor2 mb1", SENT, device=CPU, calibration=(3.0, 2.0), collective_launch_ops=2.5)
    assert milliseconds(times) == {"forward": 15, "backward": 12, "tensor": 2, "host": 30 + 2.5 + 40}


def test_distributed_tensors_are_dispatched_more_slowly() -> None:
    slow = {"device": CPU, "dtensor_dispatch_factor": 1.5}
    assert milliseconds(round_of("tensor2 mb1", **slow))["host"] == 15 + 30
    assert milliseconds(round_of("tensor2 mb1", calibration=(3.0, 2.0), **slow))["host"] == 35 + 50
    assert milliseconds(round_of("shard2 mb1", **slow))["host"] == 10 + 20


def test_zero_bubble_launches_a_split_backward() -> None:
    split = {"device": CPU, "split_backward_factor": 1.5}
    assert milliseconds(round_of("pipeline2 mb1×2 schedule=zero-bubble", **split))["host"] == 10 + 30
    assert milliseconds(round_of("pipeline2 mb1×2", **split))["host"] == 10 + 20


def test_full_recomputation_is_a_second_forward() -> None:
    times = round_of("tensor2 mb1 recompute=full", SENT, SENT_BACK, device=CPU, full_recompute_factor=3.0)
    # Forward and recomputation launch ten operations each, which take three times as long.
    assert milliseconds(times) == {
        "forward": 5,
        "backward": 6,
        "recompute": 5,
        "tensor": 2 + 3 + 2,
        "host": 30 + 20 + 30,
    }
    assert times.blocks.total == pytest.approx(103e-3)
    assert times.outside.recompute == 0


def test_selective_recomputation_repeats_everything_but_matrix_products() -> None:
    times = round_of("tensor2 mb1 recompute=selective", SENT, device=CPU, selective_recompute_factor=2.0)
    assert milliseconds(times) == {"forward": 5, "backward": 6, "recompute": 1, "tensor": 4, "host": 20 + 20 + 20}


def test_an_engine_may_recompute_attention_and_save_what_it_sent() -> None:
    times = round_of("tensor2 mb1 recompute=selective", SENT, recomputes_attention=True)
    assert milliseconds(times) == {"forward": 5, "backward": 6, "recompute": 2 + 1, "tensor": 2}


def test_attention_is_saved_by_default() -> None:
    model = RoundModel(HostGroup(GPU), PLAIN, lambda *_: single_host_placement(1, Link()))
    profile = Profile(samples=1, blocks=(module(1),), outside=module(0), shared_activation_bytes=0, optimizer_tensors=2)
    assert model.of(profile, Plan.parse("mb1 recompute=selective")).blocks.recompute == pytest.approx(1e-3)


def test_rounds_are_cached_by_what_changes_them() -> None:
    model = RoundModel(HostGroup(GPU), PLAIN, lambda *_: single_host_placement(1, Link()))
    profile = Profile(samples=1, blocks=(module(1),), outside=module(0), shared_activation_bytes=0, optimizer_tensors=2)
    plans = ["mb1", "mb1 recompute=full", "tensor2 mb1", "replicate2 mb1", "pipeline2 mb1×2 schedule=zero-bubble"]
    rounds = [model.of(profile, Plan.parse(plan)) for plan in plans]
    assert len({id(times) for times in rounds}) == len(plans)
    assert model.of(profile, Plan.parse("mb1×8")) is rounds[0]

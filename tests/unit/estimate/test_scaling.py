"""Straight lines through two traces."""

from dataclasses import replace

import pytest

from onecurve.describe.costs import BlockChain, CostTrace, JobCosts
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Collective, ComputeLoad, ModuleProfile, Profile, Work
from onecurve.estimate.scaling import Profiles


def profile(samples: int, degree: int = 1) -> Profile:
    """A block that moves 100 bytes of weights and 10 per sample; half of its FLOPs are split along tensor."""
    flops = 8 * samples // 2 + 8 * samples // 2 // degree
    collectives = (Collective("all_reduce", 6 * samples, "forward"),) if degree > 1 else ()
    work = Work(
        ComputeLoad({"matrix": flops}, 100 + 10 * samples, 7 * degree),
        ComputeLoad({"matrix": 2 * flops}, 0, 9),
        collectives,
    )
    block = ModuleProfile(
        ("b.0", "b.1"), 100 // degree, 100 // degree, 0, 0, work, activation_bytes=20 * samples, input_bytes=2 * samples
    )
    return Profile(samples, (block,), ModuleProfile((), 10, 10, 0, 0, Work(), 4 * samples, 0), 0, 2)


COSTS = JobCosts({"fp32": CostTrace(profile(4), profile(8), profile(8, 2))}, 64, 10)


def test_along_samples() -> None:
    scaled = Profiles(COSTS).of(Plan(), 3)
    assert scaled.samples == 3
    assert scaled.blocks[0].work.forward == ComputeLoad({"matrix": 24}, 130, 7)
    assert (scaled.blocks[0].activation_bytes, scaled.blocks[0].parameters, scaled.outside.activation_bytes) == (
        60,
        100,
        12,
    )


def test_along_tensor_and_samples() -> None:
    scaled = Profiles(COSTS).of(Plan(Mesh(tensor=4)), 16)
    work = scaled.blocks[0].work
    assert work.forward.flops == {"matrix": 64 + 64 // 4}
    assert work.forward.operations == 14
    assert work.collectives == (Collective("all_reduce", 96, "forward"),)
    assert scaled.blocks[0].parameters == 25


def test_samples_of_unequal_length_never_have_negative_costs() -> None:
    longer = JobCosts({"fp32": CostTrace(profile(4), profile(40))}, 64, 10)
    assert Profiles(longer).of(Plan(), 1).blocks[0].work.forward.bytes_moved > 0


def test_a_micro_batch_larger_than_the_traces() -> None:
    scaled = Profiles(COSTS).of(Plan(), 16)
    assert scaled.blocks[0].work.forward == ComputeLoad({"matrix": 128}, 260, 7)
    assert (scaled.blocks[0].work.backward.flops, scaled.optimizer_tensors) == ({"matrix": 256}, 2)


def test_one_trace_is_proportional_to_the_samples() -> None:
    same = JobCosts({"fp32": CostTrace(profile(4), profile(4))}, 64, 10)
    assert Profiles(same).of(Plan(), 8).blocks[0].work.forward == ComputeLoad({"matrix": 64}, 280, 7)


def test_costs_that_do_not_grow_in_a_line_are_proportional_to_the_larger_trace() -> None:
    small, large = profile(4), profile(8)
    shrinking = JobCosts({"fp32": CostTrace(replace(small, shared_activation_bytes=900), large)}, 64, 10)
    assert Profiles(shrinking).of(Plan(), 16).shared_activation_bytes == 0
    steep = replace(large, shared_activation_bytes=900)
    growing = JobCosts({"fp32": CostTrace(replace(small, shared_activation_bytes=100), steep)}, 64, 10)
    assert Profiles(growing).of(Plan(), 16).shared_activation_bytes == 1800
    constant = replace(small, shared_activation_bytes=900)
    steady = JobCosts({"fp32": CostTrace(constant, steep)}, 64, 10)
    assert Profiles(steady).of(Plan(), 16).shared_activation_bytes == 900
    assert Profiles(steady).of(Plan(), 1).shared_activation_bytes == 900


def test_shared_activations_grow_with_the_samples() -> None:
    small, large = (replace(profile(n), shared_activation_bytes=100 * n) for n in (4, 8))
    assert Profiles(JobCosts({"fp32": CostTrace(small, large)}, 64, 10)).of(Plan(), 6).shared_activation_bytes == 600


@pytest.mark.parametrize(("degree", "flops"), [(2, 48), (4, 40), (8, 36)])
def test_the_part_that_can_be_split_is_divided_by_the_degree(degree: int, flops: int) -> None:
    # 64 FLOPs for eight samples, of which 32 are split
    assert Profiles(COSTS).of(Plan(Mesh(tensor=degree)), 8).blocks[0].work.forward.flops == {"matrix": flops}


def test_what_is_split_by_more_than_two_leaves_nothing_behind() -> None:
    smaller = replace(profile(8, 2), shared_activation_bytes=100)
    small, large = (replace(profile(n), shared_activation_bytes=1000) for n in (4, 8))
    costs = JobCosts({"fp32": CostTrace(small, large, smaller)}, 64, 10)
    assert Profiles(costs).of(Plan(Mesh(tensor=4)), 8).shared_activation_bytes == 250


def test_costs_of_tensor_parallelism_alone_grow_with_the_samples() -> None:
    larger = replace(profile(8, 2), shared_activation_bytes=100)
    costs = JobCosts({"fp32": CostTrace(profile(4), profile(8), larger)}, 64, 10)
    # Nothing without the split, 100 bytes on one of two ranks: the part on every rank is as large as measured.
    assert Profiles(costs).of(Plan(Mesh(tensor=2)), 16).shared_activation_bytes == 200


def test_collectives_outside_the_blocks_grow_too() -> None:
    split = profile(8, 2)
    sent = Work(collectives=(Collective("all_gather", 50, "backward"),))
    costs = JobCosts(
        {"fp32": CostTrace(profile(4), profile(8), None, replace(split, outside=replace(split.outside, work=sent)))},
        64,
        10,
    )
    scaled = Profiles(costs).of(Plan(Mesh(tensor=2), sequence=True), 24)
    assert scaled.outside.work.collectives == (Collective("all_gather", 150, "backward"),)


def test_profiles_are_cached_by_precision_samples_and_tensor_split() -> None:
    both = JobCosts({"fp32": COSTS.traces["fp32"], "bf16": CostTrace(profile(8), profile(16))}, 64, 10)
    profiles = Profiles(both)
    plans = [(Plan(), 4), (Plan(), 8), (Plan(Mesh(tensor=2)), 8), (Plan(precision="bf16"), 4)]
    made = [profiles.of(*arguments) for arguments in plans]
    assert len(set(map(id, made))) == 4
    assert profiles.of(Plan(Mesh(replicate=2)), 4) is made[0]


def test_the_order_of_the_blocks_is_that_of_the_model() -> None:
    ordered = replace(COSTS, block_chain=BlockChain(kinds=(0, 0)))
    assert Profiles(ordered).of(Plan(), 3).order == (0, 0)

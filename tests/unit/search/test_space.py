"""Small spaces whose plans can be listed by hand."""

from collections import Counter
from dataclasses import replace

import pytest

from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup
from onecurve.describe.costs import BlockChain, CostTrace, JobCosts, Timing
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ComputeLoad, ModuleProfile, Profile, Work
from onecurve.estimate.estimator import Estimator
from onecurve.search.space import Space

GPU = DeviceSpec("g", "cuda", 10**10, 1e12, {"fp32": 1e14})
CPU = DeviceSpec("c", "cpu", 10**10, 1e10, {"fp32": 1e11})


def module(names: int) -> ModuleProfile:
    return ModuleProfile(
        names=("b",) * names,
        parameters=1000,
        trainable=1000,
        parameter_bytes=4000,
        trainable_bytes=4000,
        work=Work(ComputeLoad({"matrix": 10**9}), ComputeLoad({"matrix": 10**9})),
        activation_bytes=100,
        input_bytes=10,
    )


def costs(batch: int, blocks: int = 0, **more: object) -> JobCosts:
    def profile(samples: int) -> Profile:
        kinds = (module(blocks),) if blocks else ()
        return Profile(samples=samples, blocks=kinds, outside=module(0), shared_activation_bytes=0, optimizer_tensors=2)

    trace = CostTrace(profile(4), profile(8), profile(8), profile(8))
    chain = BlockChain(((1.0, 1.0),) * blocks, kinds=(0,) * blocks)
    return JobCosts(**{"traces": {"fp32": trace}, "global_batch": batch, "steps": 1, "block_chain": chain, **more})


def gpus(hosts: int, devices: int) -> HostGroup:
    return HostGroup(GPU, hosts, devices, 0)


def space(job: JobCosts, *groups: HostGroup) -> Space:
    return Space(Estimator(Cluster(groups), job))


def choices(job: JobCosts, *groups: HostGroup) -> list[str]:
    return [str(plan).removesuffix(" fp32") for plan in space(job, *groups).compute_choices()]


def test_data_parallelism_on_one_host() -> None:
    assert choices(costs(4), gpus(1, 4)) == [
        *("mb4", "mb2×2", "mb1×4"),
        *("replicate2 mb2", "replicate2 mb1×2"),
        "replicate4 mb1",
    ]


def test_the_largest_number_of_ranks_may_have_uneven_shares() -> None:
    assert [plan for plan in choices(costs(4), gpus(1, 3)) if "replicate3" in plan] == ["replicate3 mb(2,1,1)"]
    # A pipeline needs equal shares.
    piped = choices(costs(4, 2), gpus(1, 6))
    assert not [plan for plan in piped if "pipeline2·replicate3" in plan]
    assert "pipeline2·replicate2 mb2" in piped


def test_no_more_ranks_than_samples() -> None:
    assert max(plan.mesh.data for plan in space(costs(2), gpus(1, 8)).compute_choices()) == 2


def test_a_job_that_must_not_accumulate_has_one_round() -> None:
    assert choices(costs(4, has_batch_norm=True), gpus(1, 2)) == ["mb4", "replicate2 mb2"]
    norm = choices(costs(4, has_batch_norm=True, tensor_degrees=(2,)), gpus(1, 4))
    assert [plan for plan in norm if "tensor2" in plan] == ["tensor2 mb4", "tensor2 mb4 fp32 sequence"]


def test_buffers_that_depend_on_the_data_need_one_data_parallel_rank_or_an_average() -> None:
    changed = ChangedBuffers(data_dependent=("mean",))
    assert choices(costs(4, 2, changed_buffers=changed), gpus(1, 4)) == ["mb4", "pipeline2 mb4"]
    averaged = choices(costs(4, 2, changed_buffers=changed, averages_buffers=True), gpus(1, 4))
    assert averaged == ["mb4", "replicate2 mb2", "replicate4 mb1", "pipeline2 mb4"]
    counter = costs(4, 2, changed_buffers=ChangedBuffers(data_independent=("steps",)))
    assert "pipeline2·replicate2 mb2" in choices(counter, gpus(1, 4))


@pytest.mark.parametrize(
    ("group", "batch", "degrees"),
    [
        (gpus(2, 4), 8, {1, 2, 4, 8}),
        (gpus(3, 4), 24, {1, 2, 3, 4, 8, 12}),  # beyond one host, full hosts only: not 6
        (gpus(2, 3), 6, {1, 2, 3, 6}),
        (HostGroup(CPU, 2, 4, 4), 24, {1, 2, 3, 4, 6, 8}),  # the same number of ranks on each CPU host
        (HostGroup(CPU, 3, 2, 2), 24, {1, 2, 3, 6}),  # not 4: three hosts cannot have the same number
        (HostGroup(CPU, 1, 4, 4), 8, {1, 2, 4}),
    ],
)
def test_numbers_of_data_parallel_ranks(group: HostGroup, batch: int, degrees: set[int]) -> None:
    assert {plan.mesh.data for plan in space(costs(batch), group).compute_choices()} == degrees


def test_replicas_of_several_ranks_fill_hosts() -> None:
    made = space(costs(24, 2), gpus(3, 4)).compute_choices()
    assert {plan.mesh.data for plan in made if plan.mesh.pipeline == 2} == {1, 2, 4, 6}  # not 3: six ranks


def test_mixed_accelerators_are_used_up_to_the_first_group_or_entirely() -> None:
    slow = replace(gpus(1, 4), device=replace(GPU, name="s", flops={"fp32": 5e13}))
    sizes = {plan.mesh.size for plan in space(costs(48), gpus(1, 4), slow).compute_choices()}
    assert sizes == {1, 2, 3, 4, 8}


def test_mixed_cpu_hosts_have_the_same_number_of_ranks() -> None:
    group = HostGroup(CPU, 1, 4, 4)
    sizes = {plan.mesh.size for plan in space(costs(24), group, replace(group, count=2)).compute_choices()}
    assert sizes == {1, 2, 3, 4, 6, 12}


def test_faster_devices_have_larger_shares() -> None:
    slow = replace(gpus(1, 2), device=replace(GPU, name="s", flops={"fp32": 5e13}))
    assert choices(costs(6), gpus(1, 2), slow)[-1] == "replicate4 mb(2,2,1,1)"
    # The slowest device of a replica counts: ranks 0 and 1 are fast, but replica 0 consists of ranks 0 and 2.
    job = costs(6, 2)
    assert "pipeline2·replicate2 mb3" in choices(job, gpus(1, 2), slow)
    tensor = choices(costs(6, tensor_degrees=(2,)), gpus(1, 2), slow)
    assert "replicate2·tensor2 mb(4,2)" in tensor


@pytest.mark.parametrize(
    ("blocks", "devices", "degrees"),
    [
        (0, 4, {1}),
        (1, 4, {1}),
        (2, 4, {1, 2}),
        (6, 4, {1, 2, 3, 4}),  # 3 divides the blocks, 4 the devices
        (7, 7, {1, 2, 4, 7}),  # 2 and 4 are powers of two
        (5, 12, {1, 2, 3, 4, 5}),
        (11, 12, {1, 2, 3, 4, 6, 8, 11}),
    ],
)
def test_numbers_of_pipeline_ranks(blocks: int, devices: int, degrees: set[int]) -> None:
    made = space(costs(24, blocks), gpus(1, devices)).compute_choices()
    assert {plan.mesh.pipeline for plan in made} == degrees


@pytest.mark.parametrize(
    ("group", "degrees"), [(gpus(2, 4), {1, 2, 4}), (gpus(4, 2), {1, 2}), (HostGroup(CPU, 1, 8, 8), {1, 2, 4, 8})]
)
def test_tensor_parallelism_stays_within_a_host(group: HostGroup, degrees: set[int]) -> None:
    made = space(costs(8, tensor_degrees=(2, 4, 8)), group).compute_choices()
    assert {plan.mesh.tensor for plan in made} == degrees


def test_sequence_parallelism_where_it_was_traced() -> None:
    job = costs(1, tensor_degrees=(2,))
    assert choices(job, gpus(1, 2)) == ["mb1", "tensor2 mb1", "tensor2 mb1 fp32 sequence"]
    trace = job.traces["fp32"]
    without = replace(job, traces={"fp32": replace(trace, tensor2=trace.large, sequence2=None)})
    assert choices(without, gpus(1, 2)) == ["mb1", "tensor2 mb1"]


def test_every_precision_is_a_choice() -> None:
    job = costs(1)
    both = replace(job, traces={**job.traces, "bf16": job.traces["fp32"]})
    assert [plan.precision for plan in space(both, gpus(1, 1)).compute_choices()] == ["fp32", "bf16"]


def schedules(blocks: int, pipeline: int, rounds: int) -> Counter[str]:
    plan = Plan(Mesh(pipeline=pipeline), 1, rounds)
    made = space(costs(rounds, blocks), gpus(1, pipeline)).schedule_choices(plan)
    return Counter(choice.schedule for choice in made)


@pytest.mark.parametrize(
    ("blocks", "pipeline", "rounds", "expected"),
    [
        (8, 1, 8, {"1f1b": 3}),  # three kinds of recomputation
        (8, 2, 1, {"gpipe": 3, "interleaved": 3, "zero-bubble": 1}),  # 1f1b needs as many rounds as ranks
        (8, 2, 2, {"1f1b": 3, "interleaved": 3, "zero-bubble": 1}),
        (4, 2, 2, {"1f1b": 3, "interleaved": 3, "zero-bubble": 1}),
        (3, 2, 2, {"1f1b": 3, "zero-bubble": 1}),  # interleaving needs two stages per rank
        (8, 4, 9, {"1f1b": 3}),  # nine rounds are no two equal groups
        (8, 4, 3, {"gpipe": 3, "interleaved": 3, "zero-bubble": 1}),
    ],
)
def test_schedules_of_a_pipeline(blocks: int, pipeline: int, rounds: int, expected: dict[str, int]) -> None:
    assert schedules(blocks, pipeline, rounds) == expected


def test_a_model_without_blocks_recomputes_nothing() -> None:
    assert space(costs(4), gpus(1, 1)).recomputations == ("none",)
    assert space(costs(4, 2), gpus(1, 1)).recomputations == ("none", "selective", "full")


def test_stages_are_balanced_only_under_a_pipeline() -> None:
    made = space(costs(4, 5), gpus(1, 2))
    stages = {choice.stages for choice in made.schedule_choices(Plan(Mesh(pipeline=2), 2, 2))}
    assert stages == {(3, 2), (2, 1, 1, 1)}
    assert all(choice.stages == () for choice in made.schedule_choices(Plan(Mesh(replicate=2), 2)))


def shardings(text: str, job: JobCosts | None = None) -> list[str]:
    made = space(job or costs(16, 4), gpus(1, 8))
    return [str(plan) for plan in made.shardings(Plan.parse(text))]


def test_shardings_of_four_ranks() -> None:
    assert shardings("replicate4 mb4") == [
        "replicate4 mb4 fp32",
        "replicate2·shard2 mb4 fp32",
        "replicate2·shard2 mb4 fp32 zero2",
        "shard4 mb4 fp32",
        "shard4 mb4 fp32 zero2",
    ]


def test_gradients_may_be_reduced_after_every_round() -> None:
    assert shardings("replicate2 mb4×2") == [
        "replicate2 mb4×2 fp32",
        "shard2 mb4×2 fp32",
        "shard2 mb4×2 fp32 reduce=round",
        "shard2 mb4×2 fp32 zero2",
        "shard2 mb4×2 fp32 reduce=round zero2",
    ]


def test_zero_bubble_keeps_parameters_gathered() -> None:
    assert shardings("pipeline2·replicate2 mb4×2 schedule=zero-bubble") == [
        "pipeline2·replicate2 mb4×2 fp32 schedule=zero-bubble",
        "pipeline2·shard2 mb4×2 fp32 zero2 schedule=zero-bubble",
    ]


def test_an_optimizer_that_needs_full_parameters_forbids_sharding_and_tensor_parallelism() -> None:
    full = costs(4, needs_full_parameters=True, tensor_degrees=(2,))
    assert shardings("replicate4 mb1", full) == ["replicate4 mb1 fp32"]
    assert {plan.mesh.tensor for plan in space(full, gpus(1, 4)).compute_choices()} == {1}


def test_all_plans_are_the_product_of_the_three_levels() -> None:
    made = space(costs(4, 2), gpus(1, 2))
    plans = [
        plan
        for choice in made.compute_choices()
        for scheduled in made.schedule_choices(choice)
        for plan in made.shardings(scheduled)
    ]
    assert list(made.plans()) == plans


def test_compiled_blocks_where_they_were_timed() -> None:
    timed = costs(2, blocks=4, tensor_degrees=(2,), timings=(Timing("fp32", 1, 2, 1.0, 1.0, compiled=True),))
    found = [str(plan) for plan in space(timed, gpus(1, 2)).plans() if plan.compile]
    assert "mb2 fp32 compile" in found
    assert "shard2 mb1 fp32 compile" in found
    assert not any("tensor" in plan or "recompute" in plan or "zero-bubble" in plan for plan in found)
    untimed = replace(timed, timings=(Timing("fp32", 1, 2, 1.0, 1.0),))
    assert not any(plan.compile for plan in space(untimed, gpus(1, 2)).plans())

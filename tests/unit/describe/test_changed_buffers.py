"""Which plans are excluded by what forward changes, and what the user is told."""

import re

import pytest

from onecurve.describe.changed_buffers import ChangedBuffers, refusal_of_mesh, refusal_of_rounds, refusal_of_whole
from onecurve.describe.plan import Plan


@pytest.mark.parametrize(
    ("changed", "plan", "words"),
    [
        (ChangedBuffers(parameters=("k",)), "shard2 mb4", "parameter 'k'.*under 'shard'.*one with 'replicate'"),
        (ChangedBuffers(parameters=("k",)), "pipeline2 mb4×2", "under 'pipeline'.*one with 'replicate'"),
        (ChangedBuffers(data_dependent_parameters=("k",)), "shard2 mb4", "under 'shard'.*one device"),
        (ChangedBuffers(data_dependent_parameters=("k",)), "replicate2 mb4", "depending on the samples.*max_norm"),
        (ChangedBuffers(data_dependent=("queue",)), "replicate2 mb4", "buffer 'queue'.*buffers='average'"),
    ],
)
def test_a_mesh_is_refused_with_another_plan(changed: ChangedBuffers, plan: str, words: str) -> None:
    reason = refusal_of_mesh(changed, Plan.parse(plan).mesh, averages=False, syncs_batch_norm=False)
    assert re.search(words, reason)


@pytest.mark.parametrize(
    ("changed", "plan"),
    [
        (ChangedBuffers(), "shard2 mb4"),
        (ChangedBuffers(parameters=("k",)), "replicate2 mb4"),
        (ChangedBuffers(data_dependent_parameters=("k",)), "tensor2 mb8"),
        (ChangedBuffers(data_dependent=("queue",)), "mb8"),
        (ChangedBuffers(data_independent=("u",)), "shard2 mb4"),
    ],
)
def test_other_meshes_are_accepted(changed: ChangedBuffers, plan: str) -> None:
    assert refusal_of_mesh(changed, Plan.parse(plan).mesh, averages=False, syncs_batch_norm=False) == ""


def test_rounds_are_refused_for_what_a_forward_writes_each_time() -> None:
    assert "parameter 'k' once per round" in refusal_of_rounds(ChangedBuffers(parameters=("k",)), 2, averages=False)
    assert refusal_of_rounds(ChangedBuffers(parameters=("k",)), 1, averages=False) == ""
    normalized = ChangedBuffers(data_dependent_parameters=("e",), normalized_parameters=("e",))
    assert refusal_of_rounds(normalized, 2, averages=False) == ""
    queue = ChangedBuffers(data_dependent=("queue",))
    assert "a step of 2 rounds" in refusal_of_rounds(queue, 2, averages=False)
    assert refusal_of_rounds(queue, 2, averages=True) == ""


@pytest.mark.parametrize("plan", ["shard2 mb4", "tensor2 mb8", "pipeline2 mb4×2"])
def test_what_must_stay_whole_is_not_taken_apart(plan: str) -> None:
    axis = plan.partition("2")[0]
    assert f"two share memory; '{axis}' would" in refusal_of_whole("two share memory", Plan.parse(plan).mesh)
    assert refusal_of_whole("", Plan.parse(plan).mesh) == ""
    assert refusal_of_whole("two share memory", Plan.parse("replicate2 mb4").mesh) == ""

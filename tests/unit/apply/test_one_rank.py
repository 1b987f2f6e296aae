"""One rank of a fake process group holds the bytes and runs the collectives that arithmetic predicts."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from onecurve.data.training_data import open_data
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.planner.traced_model import TracedModel

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import one_rank

SIZES = one_rank.MODELS["llama3-405b"]


def local_elements_of_block(tensor: int, shard: int) -> int:
    """Elements of one block on one rank: `tensor` splits its matrices, `shard` all its parameters along dimension 0."""
    width, hidden = SIZES["width"], SIZES["hidden"]
    kv = width // SIZES["heads"] * SIZES["kv_heads"]
    rows = [(width // tensor, width)] + 2 * [(kv // tensor, width)] + 2 * [(hidden // tensor, width)]
    columns = [(width, width // tensor), (width, hidden // tensor)]
    return sum(first // shard * second for first, second in rows + columns) + 2 * width // shard


@pytest.mark.parametrize("sequence", [pytest.param(False, marks=pytest.mark.slow), True])
def test_one_rank_of_405b_holds_and_sends_the_expected_bytes(sequence: bool) -> None:
    # The full mesh of 16,384 ranks, at a depth of one block per stage.
    plan = Plan(Mesh(pipeline=16, shard=128, tensor=8), 1, 16, "bf16", sequence=sequence)
    job = one_rank.make_job("llama3-405b", 16, 8192, plan.global_batch)
    data = open_data(job)
    plan = one_rank.complete(replace(plan, stages=(1,) * 16), job, data)
    trace = one_rank.build(job, data, plan, rank=plan.mesh.size // 2)
    assert trace.stages == ((8,),)
    assert trace.parameters == trace.gradients == 4 * local_elements_of_block(tensor=8, shard=128)
    assert trace.optimizer == 2 * trace.parameters
    assert trace.in_flight == 8
    blocks = TracedModel(job, data).dataflow.blocks
    assert one_rank.counted(trace) == one_rank.expected(job, data, plan, [8], blocks)
    along_tensor = {"all_gather": 2, "reduce_scatter": 2} if sequence else {"all_reduce": 2}
    forward = Counter(collective.kind for collective in trace.collectives if collective.when == "forward")
    assert forward == Counter(along_tensor) + Counter(all_gather=1)

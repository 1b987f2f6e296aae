"""One rank of a pretended world holds and sends what arithmetic says it should."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from onecurve.data.training_data import open_data
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.planner.completion import complete
from onecurve.planner.pipeline_stages import dataflow_of
from onecurve.planner.traced_model import TracedModel

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import one_rank

SIZES = one_rank.MODELS["llama3-405b"]


def elements_of_a_block(tensor: int, shard: int) -> int:
    """On one rank: matrices and norms, cut by `tensor` and then by `shard` along their first dimension."""
    width, hidden = SIZES["width"], SIZES["hidden"]
    kv = width // SIZES["heads"] * SIZES["kv_heads"]
    rows = [(width // tensor, width)] + 2 * [(kv // tensor, width)] + 2 * [(hidden // tensor, width)]
    columns = [(width, width // tensor), (width, hidden // tensor)]
    return sum(first // shard * second for first, second in rows + columns) + 2 * width // shard


@pytest.mark.parametrize("sequence", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_rank_of_405b_holds_and_sends_what_it_should(sequence: bool) -> None:
    # The full mesh of 16,384 ranks, at a depth of one block per stage.
    plan = Plan(Mesh(pipeline=16, shard=128, tensor=8), 1, 16, "bf16", sequence=sequence)
    job = one_rank.make_job("llama3-405b", 16, 8192, plan.global_batch)
    data = open_data(job)
    plan = complete(replace(plan, stages=(1,) * 16), job, data)
    found = one_rank.build(job, data, plan, rank=plan.mesh.size // 2)
    assert found.stages == ((8,),)
    assert found.parameters == found.gradients == 4 * elements_of_a_block(tensor=8, shard=128)
    assert found.optimizer == 2 * found.parameters
    assert found.in_flight == 8
    blocks = dataflow_of(TracedModel(job, data)).blocks
    assert one_rank.counted(found) == one_rank.expected(job, data, plan, [8], blocks)
    along_tensor = {"all_gather": 2, "reduce_scatter": 2} if sequence else {"all_reduce": 2}
    forward = Counter(each.kind for each in found.collectives if each.when == "forward")
    assert forward == Counter(along_tensor) + Counter(all_gather=1)

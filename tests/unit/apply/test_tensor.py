"""A tensor-parallel block runs the same collectives as a hand-written Megatron block, and no more."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Replicate, Shard

from onecurve.apply.tensor import TensorAxis
from onecurve.describe.errors import OnecurveError
from onecurve.measure.fake_process_group import fake_process_group
from onecurve.measure.op_counter import OpCounter

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import gpt

LAYOUTS = {
    "qkv.*": "dim 0 in 3 parts",
    "project.weight": "dim 1",
    "mlp.0.*": "dim 0",
    "mlp.2.weight": "dim 1",
}


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (False, {("all_reduce", "forward"): 2, ("all_reduce", "backward"): 2}),
        (
            True,
            {
                ("all_gather", "forward"): 2,
                ("reduce_scatter", "forward"): 2,
                ("all_gather", "backward"): 2,
                ("reduce_scatter", "backward"): 2,
            },
        ),
    ],
    ids=["replicated", "sequence"],
)
@pytest.mark.parametrize("degree", [2, 4])
def test_a_block_runs_the_collectives_of_megatron(sequence: bool, expected: dict, degree: int) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        block = gpt.Block(16, 4)
        x = torch.randn(2, 32 // degree if sequence else 32, 16)
    counter = OpCounter(mode)
    with fake_process_group(degree) as mesh:
        stream = DTensor.from_local(x, mesh, [Shard(1) if sequence else Replicate()], run_check=False)
        with TensorAxis(mesh, LAYOUTS, sequence).temporarily_split(block), counter:
            output = block(stream.requires_grad_())
            assert output.placements == stream.placements
            counter.when = "backward"
            output.backward(output.detach())
            assert stream.grad.placements == stream.placements
    assert Counter((collective.kind, collective.when) for collective in counter.collectives) == expected
    assert {collective.size for collective in counter.collectives} == {2 * 32 * 16 * 4}
    assert not any(isinstance(parameter, DTensor) for parameter in block.parameters())


def test_a_layout_that_does_not_divide_is_refused() -> None:
    with fake_process_group(3) as mesh, pytest.raises(OnecurveError, match=r"qkv\.weight .* cannot be split by 'dim 0"):
        TensorAxis(mesh, LAYOUTS, sequence=False).split(gpt.Block(16, 4))

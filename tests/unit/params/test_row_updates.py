"""Rows are updated as torch's optimizers update the rows of a sparse gradient."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from harness import python
from onecurve.job.embedding import Embedding
from onecurve.job.row_optimizer import SGD, Adam, RowOptimizer, RowwiseAdagrad
from onecurve.params.row_store import RowStore

Make = Callable[[nn.Parameter], torch.optim.Optimizer]


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (SGD(0.3), lambda p: torch.optim.SGD([p], lr=0.3)),
        (Adam(0.02, (0.8, 0.95), 1e-6), lambda p: torch.optim.SparseAdam([p], lr=0.02, betas=(0.8, 0.95), eps=1e-6)),
        (Adam(0.02, (0.9, 0.99999)), lambda p: torch.optim.SparseAdam([p], lr=0.02, betas=(0.9, 0.99999), eps=1e-8)),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_as_torch(optimizer: RowOptimizer, make: Make, dtype: torch.dtype, tolerance: float) -> None:
    draw = torch.Generator().manual_seed(0)
    store = RowStore(Embedding("item", 4, optimizer), 0, dtype)
    ids = torch.arange(6)
    parameter = nn.Parameter(store.get(ids))
    reference = make(parameter)
    for step in range(1, 9):
        used = torch.randperm(6, generator=draw)[:3].sort().values
        gradients = torch.randn(3, 4, generator=draw, dtype=dtype)
        parameter.grad = torch.sparse_coo_tensor(used[None], gradients, (6, 4), check_invariants=True).coalesce()
        reference.step()
        store.update(used, gradients, optimizer.lr, step)
        torch.testing.assert_close(store.get(ids), parameter.detach(), rtol=tolerance, atol=tolerance)


def test_rowwise_adagrad() -> None:
    store, ids = RowStore(Embedding("item", 2, RowwiseAdagrad(0.1, eps=0.0)), 0, torch.float64), torch.tensor([5])
    first = store.get(ids)
    store.update(ids, torch.tensor([[3.0, 4.0]], dtype=torch.float64), 0.1, 1)
    _, rows, states = store.contents(torch.tensor([0]))
    assert states.item() == 12.5
    torch.testing.assert_close(rows, first - torch.tensor([[0.3, 0.4]], dtype=torch.float64) / 12.5**0.5)


def digest() -> str:
    """Of rows and states after some updates of each optimizer, in float32."""
    draw = torch.Generator().manual_seed(0)
    found = hashlib.sha256()
    for optimizer in (SGD(0.3), RowwiseAdagrad(0.1), Adam(0.02)):
        store = RowStore(Embedding("item", 33, optimizer), 0, torch.float32)
        for step in range(1, 6):
            ids = torch.randint(0, 2_000, (500,), generator=draw).unique()
            store.update(ids, torch.randn(len(ids), 33, generator=draw), optimizer.lr, step)
        for part in store.contents(torch.arange(len(store))):
            found.update(part.numpy().tobytes())
    return found.hexdigest()


def test_all_processors_compute_the_same_bits(tmp_path: Path) -> None:
    """Code that is compiled for the oldest processor, without long vectors and fused operations, agrees with ours."""
    here = Path(__file__).parent
    done = python(
        "-c",
        "import test_row_updates; print(test_row_updates.digest())",
        PYTHONPATH=os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]),
        NUMBA_CACHE_DIR=str(tmp_path),
        NUMBA_CPU_NAME="x86-64",
        NUMBA_CPU_FEATURES="",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == digest()

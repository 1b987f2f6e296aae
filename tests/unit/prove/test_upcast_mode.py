import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from onecurve.prove.dropout import NoDropout
from onecurve.prove.upcast_mode import UpcastMode


def test_casts_to_float32_give_float64_also_in_recomputation() -> None:
    dtypes = []

    def block(x: Tensor) -> Tensor:
        y = (2 * x).to(torch.float32)
        dtypes.append((y.dtype, x.float().dtype, x.softmax(0, dtype=torch.float32).dtype))
        return torch.nn.functional.dropout(y.sin(), 0.5, training=True)

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    upcast, no_dropout = UpcastMode(), NoDropout()
    with no_dropout, upcast:
        checkpoint(block, x, use_reentrant=False).sum().backward()
    assert dtypes == [(torch.float64,) * 3] * 2
    torch.testing.assert_close(x.grad, 2 * torch.cos(2 * x.detach()))
    assert upcast.triggered
    assert no_dropout.triggered


def test_other_dtypes_than_float64_are_cast_as_usual() -> None:
    with UpcastMode() as upcast:
        assert torch.zeros(2, dtype=torch.int64).to(torch.float32).dtype == torch.float32
        assert torch.zeros(2, dtype=torch.bfloat16).float().dtype == torch.float32
    assert not upcast.triggered

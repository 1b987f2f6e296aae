import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from onecurve.prove.dropout import NoDropout
from onecurve.prove.upcast_mode import UpcastMode


def test_casts_to_float32_stay_wide_also_where_backward_computes_again() -> None:
    seen = []

    def block(x: Tensor) -> Tensor:
        y = (2 * x).to(torch.float32)
        seen.append((y.dtype, x.float().dtype, x.softmax(0, dtype=torch.float32).dtype))
        return torch.nn.functional.dropout(y.sin(), 0.5, training=True)

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    wide, no_dropout = UpcastMode(), NoDropout()
    with no_dropout, wide:
        checkpoint(block, x, use_reentrant=False).sum().backward()
    assert seen == [(torch.float64,) * 3] * 2
    torch.testing.assert_close(x.grad, 2 * torch.cos(2 * x.detach()))
    assert wide.found
    assert no_dropout.found


def test_what_is_not_float64_is_left_alone() -> None:
    with UpcastMode() as wide:
        assert torch.zeros(2, dtype=torch.int64).to(torch.float32).dtype == torch.float32
        assert torch.zeros(2, dtype=torch.bfloat16).float().dtype == torch.float32
    assert not wide.found

"""Attention with dropout is traced as accelerators compute it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onecurve.measure.fused_attention import FusedAttention


def saved_bytes(**options: float) -> int:
    """Bytes that attention keeps for backward."""
    query, key, value = (torch.randn(1, 2, 64, 8, requires_grad=True) for _ in range(3))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.scaled_dot_product_attention(query, key, value, **options)
    return sum(kept.values())


def test_dropout_keeps_no_attention_weights() -> None:
    without = saved_bytes()
    assert saved_bytes(dropout_p=0.1) > 2 * without
    with FusedAttention():
        assert saved_bytes(dropout_p=0.1) == without


@pytest.mark.parametrize("arguments", [(None, 0.5), (None, 0.5, True)])
def test_positional_arguments(arguments: tuple[object, ...]) -> None:
    query = torch.randn(1, 2, 4, 8)
    with FusedAttention():
        found = F.scaled_dot_product_attention(query, query, query, *arguments)
    expected = F.scaled_dot_product_attention(query, query, query, is_causal=len(arguments) > 2)
    torch.testing.assert_close(found, expected)

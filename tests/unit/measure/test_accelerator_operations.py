"""Operations are traced as accelerators compute them."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onecurve.measure.accelerator_operations import FLOAT32_OPERATIONS, AcceleratorOperations


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
    with AcceleratorOperations():
        assert saved_bytes(dropout_p=0.1) == without


@pytest.mark.parametrize("arguments", [(None, 0.5), (None, 0.5, True)])
def test_positional_arguments(arguments: tuple[object, ...]) -> None:
    query = torch.randn(1, 2, 4, 8)
    with AcceleratorOperations():
        found = F.scaled_dot_product_attention(query, query, query, *arguments)
    expected = F.scaled_dot_product_attention(query, query, query, is_causal=len(arguments) > 2)
    torch.testing.assert_close(found, expected)


def test_the_attention_module_keeps_no_weights_either() -> None:
    x = torch.randn(2, 16, 32)
    attention = nn.MultiheadAttention(32, 4, dropout=0.5, batch_first=True)
    without = nn.MultiheadAttention(32, 4, batch_first=True)
    without.load_state_dict(attention.state_dict())
    with AcceleratorOperations():
        found, _ = attention(x, x, x, need_weights=False)
    torch.testing.assert_close(found, without(x, x, x, need_weights=False)[0])


def test_the_list_is_that_of_torch() -> None:
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    lists = header[header.index("#define AT_FORALL_FP32(_)") : header.index("#define AT_FORALL_PROMOTE(_)")]
    names = {name for name in re.findall(r"\b_\((?:ADD_NS\()?(\w+)", lists) if "upsample" not in name} - {"_"}
    assert names == FLOAT32_OPERATIONS


def test_norms_softmax_and_losses_are_in_float32_under_autocast() -> None:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    weight = torch.ones(8)
    target = torch.zeros(4, dtype=torch.int64)

    def dtypes() -> list[torch.dtype]:
        results = [
            F.layer_norm(x, (8,), weight, weight),
            x.softmax(-1),
            x**2,
            x.sum(),
            F.cross_entropy(x, target),
            F.linear(x, torch.ones(3, 8)),
            x + x,
            x.sum(dtype=torch.bfloat16),
        ]
        return [result.dtype for result in results]

    with AcceleratorOperations(), torch.autocast("cpu", torch.bfloat16):
        assert dtypes() == [torch.float32] * 5 + [torch.bfloat16] * 3
    with AcceleratorOperations():
        assert F.rms_norm(x, (8,)).dtype == torch.bfloat16

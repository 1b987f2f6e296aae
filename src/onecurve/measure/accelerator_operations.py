"""Traces operations as accelerators compute them, on a host that has none."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_DROPOUT_POSITION = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}
"""Position of the argument `dropout_p` of attention."""
# fmt: off
FLOAT32_OPERATIONS = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm",
    "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "prod", "softmax",
    "log_softmax", "cumprod", "cumsum", "sum", "linalg_vector_norm", "linalg_matrix_norm", "norm",
))
# fmt: on
"""Operations that CUDA's autocast computes in float32. Its list also has the upsampling kernels, see `_COMPOSITE`."""
_COMPOSITE = frozenset(("cross_entropy", "interpolate", "__pow__", "__rpow__", "vector_norm", "matrix_norm", "softmin"))
"""Functions that call some of these, which a function mode does not see."""


class AcceleratorOperations(TorchFunctionMode):
    """While it is active, operations cost what they cost on accelerators, where this differs from the CPU.

    Attention with dropout: on accelerators one kernel computes both. The CPU has no such kernel with dropout: it
    computes, and keeps for backward, the matrix of all attention weights, which no accelerator does.

    Autocast: CUDA's computes norms, softmax, powers, sums and losses in float32. The CPU's leaves most of them in 16
    bits.
    """

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if (position := _DROPOUT_POSITION.get(function)) is not None:
            if len(arguments) > position:
                arguments = (*arguments[:position], 0.0, *arguments[position + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        elif torch.is_autocast_enabled("cpu") and kwargs.get("dtype") is None and _computes_in_float32(function):
            arguments, kwargs = pytree.tree_map(_as_float32, (arguments, kwargs))
        return function(*arguments, **kwargs)


def _computes_in_float32(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return name in FLOAT32_OPERATIONS or name in _COMPOSITE


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value

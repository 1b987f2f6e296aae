"""Cross-entropy between pairs of embeddings, in which all other samples of a batch are negatives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from onecurve.describe.errors import OnecurveError

_ROWS = 4096
"""Rows of the matrix of similarities that exist at a time."""
_MAX_SCALE = 100.0


@dataclass(frozen=True)
class Contrast:
    """The mean cross-entropy of each embedding with its partner among all partners.

    `symmetric`: in both directions. `temperature`: that of similarities, if the model does not learn one.
    """

    temperature: float
    symmetric: bool
    name: str

    def __call__(self, embeddings: Any, target: Any) -> Tensor:  # noqa: ARG002
        if not isinstance(embeddings, Sequence) or len(embeddings) not in (2, 3):
            raise OnecurveError(
                f"loss.{self.name}: the model must return two embeddings of each sample, [batch, width] each, and "
                f"perhaps the logarithm of a learned scale; got {_description(embeddings)}"
            )
        one, other, *log_scale = embeddings
        if one.dim() != 2 or one.shape != other.shape:
            raise OnecurveError(
                f"loss.{self.name}: both embeddings must have the same shape [batch, width], got {list(one.shape)} and "
                f"{list(other.shape)}"
            )
        scale = log_scale[0].exp().clamp(max=_MAX_SCALE) if log_scale else 1 / self.temperature
        with torch.autocast(one.device.type, enabled=False):
            one, other = (F.normalize(_wide(each), dim=1) for each in (one, other))
            mean = _mean_cross_entropy(one * scale, other)
            return (mean + _mean_cross_entropy(other * scale, one)) / 2 if self.symmetric else mean

    def __str__(self) -> str:
        return f"{self.name}({self.temperature})"


def _mean_cross_entropy(rows: Tensor, partners: Tensor) -> Tensor:
    """Row by row against all partners; the matrix of a large batch exists in parts only, also in backward."""

    def part(begin: Tensor, some: Tensor) -> Tensor:
        labels = torch.arange(len(some), device=some.device) + begin
        return F.cross_entropy(some @ partners.T, labels, reduction="sum")

    begins = range(0, len(rows), _ROWS)
    if len(begins) == 1:
        return part(torch.zeros((), dtype=torch.int64, device=rows.device), rows) / len(rows)
    sums = [
        checkpoint(part, torch.tensor(begin, device=rows.device), rows[begin : begin + _ROWS], use_reentrant=False)
        for begin in begins
    ]
    return torch.stack(sums).sum() / len(rows)


def _wide(embedding: Tensor) -> Tensor:
    return embedding if embedding.dtype == torch.float64 else embedding.float()


def _description(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, Sequence) else type(value).__name__

"""Marks a value of a sample: hashes of its bytes, and sums of its computed numbers (see describe/data_marks.py)."""

import logging
import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from onecurve.describe.data_marks import ValueMark

_log = logging.getLogger(__name__)

_SUMMED = 1 << 12
"""Numbers of an array that its sums cover, evenly spread; the hash covers all."""
_STEPS = (math.sqrt(5) / 2 - 0.5, math.sqrt(2) - 1, math.sqrt(3) - 1, math.e - 2)
_TEXT = 60
_SHOWN = 4


def mark_value(value: Any) -> ValueMark:
    """Return the mark of a value. What is not known (objects of other classes) counts by its type only."""
    marker = _marked(value, with_sums=True)
    return ValueMark(marker.all.hexdigest(), marker.exact.hexdigest(), marker.sums(), short_text(value))


def value_hash(value: Any) -> str:
    """Return the hash of all bytes of a value."""
    return _marked(value, with_sums=False).all.hexdigest()


def _marked(value: Any, with_sums: bool) -> "_Marker":
    marker = _Marker(with_sums)
    try:
        marker.add(value)
    except Exception:  # objects of the user's may refuse in any way; such a value counts by its type
        _log.info("a value of type %s cannot be marked", type(value).__name__, exc_info=True)
        marker = _Marker(with_sums)
        marker.add(type(value).__qualname__)
    return marker


def short_text(value: Any) -> str:
    """Describe a value in a few words."""
    if isinstance(value, torch.Tensor | np.ndarray):
        text = _array_text(value)
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key!r}: {short_text(each)}" for key, each in [*value.items()][:_SHOWN]) + "}"
    elif isinstance(value, tuple | list):
        text = "(" + ", ".join(short_text(each) for each in value[:_SHOWN]) + ", …" * (len(value) > _SHOWN) + ")"
    elif isinstance(value, str | bytes | int | float | complex | np.generic | None):
        text = repr(value.item() if isinstance(value, np.generic) else value)
    else:
        text = type(value).__name__
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def _array_text(array: Any) -> str:
    kind = f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}"
    try:
        first = array.reshape(-1)[:_SHOWN].tolist()
    except (RuntimeError, TypeError, ValueError):  # sparse, or on no device
        return kind
    shown = ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in first)
    more = math.prod(array.shape) > _SHOWN
    return f"[{shown}{', …' if more else ''}]{f' ({kind})' if more else ''}"


class _Marker:
    def __init__(self, with_sums: bool) -> None:
        self.all, self.exact = xxhash.xxh3_64(), xxhash.xxh3_64()
        self._with_sums = with_sums
        self._numbers = 0
        self._norm = 0.0
        self._sums = np.zeros(len(_STEPS))

    def sums(self) -> tuple[float, ...]:
        return (math.sqrt(self._norm), *self._sums.tolist()) if self._numbers else ()

    def add(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic | float | complex):
            self._array(np.asarray(value))
        elif isinstance(value, str | bytes | int | None):  # also bool
            self._text(type(value).__name__, repr(value))
        elif isinstance(value, Mapping):
            self._all("mapping", [part for key in sorted(value, key=repr) for part in (key, value[key])])
        elif isinstance(value, tuple | list):
            self._all("list", value)
        elif isinstance(value, Set):
            self._text("set", " ".join(sorted(value_hash(each) for each in value)))
        elif is_dataclass(value) and not isinstance(value, type):
            self._all(type(value).__name__, [getattr(value, field.name) for field in fields(value)])
        elif type(value).__module__.startswith("PIL."):
            self._array(np.asarray(value))
        elif callable(getattr(value, "to_dict", None)):  # graphs of torch_geometric
            self._all(type(value).__name__, [value.to_dict()])
        else:
            self._text("object", type(value).__qualname__)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
            self._text("tensor", f"{tensor.layout} {tensor.dtype}")
            return
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        if plain.dtype == torch.bfloat16 or (plain.is_floating_point() and plain.itemsize == 1):  # not known to NumPy
            plain = plain.float()
        self._array(plain.numpy())

    def _array(self, array: NDArray[Any]) -> None:
        if array.dtype == object:
            self._all("array", array.reshape(-1).tolist())
            return
        self._text("array", f"{array.dtype} {array.shape}")
        content = np.ascontiguousarray(array).tobytes()
        self.all.update(content)
        if not (self._with_sums and self._sum(array)):
            self.exact.update(content)

    def _sum(self, array: NDArray[Any]) -> bool:
        """Add computed numbers to the sums; return False for an array that must be equal bit by bit."""
        if array.dtype.kind not in "fc" or array.size == 0:
            return False
        flat = array.reshape(-1)
        flat = flat[:: -(-flat.size // _SUMMED)]
        if flat.dtype.kind == "c":
            flat = flat.real + 2 * flat.imag
        numbers = flat.astype(np.float64)
        norm = float(numbers @ numbers)
        if not math.isfinite(norm):
            return False
        begin = self._numbers % _SUMMED
        self._sums += _weights()[:, begin : begin + numbers.size] @ numbers
        self._norm += norm
        self._numbers += numbers.size
        return True

    def _all(self, what: str, values: Any) -> None:
        self._text(what, str(len(values)))
        for value in values:
            self.add(value)

    def _text(self, what: str, text: str) -> None:
        content = f"{what}:{len(text)}:{text};".encode("utf-8", "surrogatepass")
        self.all.update(content)
        self.exact.update(content)


@cache
def _weights() -> NDArray[np.float64]:
    """Numbers between -0.5 and 0.5 without a period, so that also numbers in another order have other sums."""
    counts = np.arange(1, 2 * _SUMMED + 1, dtype=np.float64)
    return np.stack([counts * step % 1.0 - 0.5 for step in _STEPS])

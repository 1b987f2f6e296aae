"""Writes a model's weights to one safetensors file, part by part, so that no rank ever holds a full sharded tensor."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from onecurve.checkpoint.safetensors_format import DTYPE_NAMES, header_bytes, tensor_bytes
from onecurve.describe.errors import OnecurveError
from onecurve.device.files import Bytes, replace_file
from onecurve.device.local_tensor import LocalTensor


def save_weights(
    local_tensors: Sequence[LocalTensor],
    path: Path,
    *,
    writer: bool,
    on_progress: Callable[[int, int], None] = lambda _, __: None,
) -> None:
    """Gather the tensors and write them to `path`. All ranks of the model must call this; only the `writer` writes.
    `on_progress`: told the bytes that were written, and those to be written in all.

    Tied tensors are written once, under their first name, as safetensors' own `load_model` expects.
    """
    if not writer:
        for local_tensor in local_tensors:
            for _ in local_tensor.gather_parts():
                pass
        return
    header = header_bytes(
        {local_tensor.name: (local_tensor.registered.dtype, local_tensor.shape) for local_tensor in local_tensors},
        {"format": "pt"},
    )

    def contents() -> Iterator[Bytes]:
        yield header
        done, total = 0, sum(math.prod(each.shape) * each.registered.dtype.itemsize for each in local_tensors)
        for local_tensor in local_tensors:
            for part in local_tensor.gather_parts():
                yield tensor_bytes(part)
                done += part.nbytes
                on_progress(done, total)

    replace_file(path, contents())


def refuse_unsupported_dtypes(local_tensors: Sequence[LocalTensor]) -> None:
    """Raise an error if safetensors cannot store a tensor's dtype; called before training rather than after it."""
    for local_tensor in local_tensors:
        dtype = local_tensor.registered.dtype
        if dtype not in DTYPE_NAMES:
            raise OnecurveError(
                f"model: {local_tensor.name} has dtype {dtype}, which safetensors cannot store; use another dtype, or "
                "register it with persistent=False if it need not be saved"
            )

"""Writes a model's weights to one safetensors file, part by part, so that no rank ever holds a full sharded tensor."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from onecurve.checkpoint.safetensors_format import DTYPE_NAMES, header_bytes, tensor_bytes
from onecurve.describe.errors import OnecurveError
from onecurve.device.files import replace_file
from onecurve.device.local_tensor import LocalTensor


def save_weights(local_tensors: Sequence[LocalTensor], path: Path, *, writer: bool) -> None:
    """Gather the tensors and write them to `path`. All ranks of the model must call this; only the `writer` writes.

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
    contents = (tensor_bytes(part) for local_tensor in local_tensors for part in local_tensor.gather_parts())
    replace_file(path, itertools.chain([header], contents))


def refuse_unsupported_dtypes(local_tensors: Sequence[LocalTensor]) -> None:
    """Raise an error if safetensors cannot store a tensor's dtype; called before training rather than after it."""
    for local_tensor in local_tensors:
        dtype = local_tensor.registered.dtype
        if dtype not in DTYPE_NAMES:
            raise OnecurveError(
                f"model: {local_tensor.name} has dtype {dtype}, which safetensors cannot store; use another dtype, or "
                "register it with persistent=False if it need not be saved"
            )

"""Writes a model's weights as one safetensors file, tensor by tensor: no more than one whole tensor is ever held."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from onecurve.checkpoint.safetensors_format import NAMES, header, raw
from onecurve.describe.errors import OnecurveError
from onecurve.device.files import replace_file
from onecurve.device.local_tensor import LocalTensor


def save_weights(local_tensors: Sequence[LocalTensor], path: Path, *, writer: bool) -> None:
    """Every rank that holds a part must call this; the `writer` alone touches the disk.

    Tied tensors are written once, under their first name, as safetensors' own `load_model` expects.
    """
    if not writer:
        for local_tensor in local_tensors:
            local_tensor.gather()
        return
    first = header(
        {local_tensor.name: (local_tensor.whole.dtype, local_tensor.shape) for local_tensor in local_tensors},
        {"format": "pt"},
    )
    replace_file(path, itertools.chain([first], (raw(local_tensor.gather()) for local_tensor in local_tensors)))


def refuse_unsupported_dtypes(local_tensors: Sequence[LocalTensor]) -> None:
    """Say before training, not after, that a tensor has a type the file format does not know."""
    for local_tensor in local_tensors:
        if local_tensor.whole.dtype not in NAMES:
            raise OnecurveError(
                f"model: {local_tensor.name} has dtype {local_tensor.whole.dtype}, which safetensors cannot store; "
                "keep it in another type, or register it with persistent=False if it need not be saved"
            )

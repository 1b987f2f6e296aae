"""The tensors of a model that are saved, and how they are written from a checkpoint."""

from pathlib import Path

from onecurve.apply.base_part import BasePart
from onecurve.checkpoint.export import lazy_tensors_of, write_one
from onecurve.checkpoint.loader import Checkpoint
from onecurve.describe.errors import OnecurveError
from onecurve.device.local_tensor import LocalTensor


def saved_tensors(part: BasePart) -> list[LocalTensor]:
    """Return what a checkpoint holds: the model's state_dict, and parameters that the state_dict leaves out."""
    in_state_dict = part.state_dict_tensors
    names = {tensor.name for tensor in in_state_dict}
    tensors = [*in_state_dict, *(tensor for tensor in part.parameters if tensor.name not in names)]
    return [tensor for tensor in tensors if tensor.name not in part.unsaved]


def written_tensors(part: BasePart) -> list[LocalTensor]:
    """Return what a file of weights holds: the model's state_dict, without the frozen base of a model with adapters."""
    return [tensor for tensor in part.state_dict_tensors if tensor.name not in part.unsaved]


def write_weights_of(checkpoint: Checkpoint, part: BasePart, path: Path) -> None:
    """Write the weights of a checkpoint as one safetensors file, on one rank."""
    names = {tensor.name for tensor in part.state_dict_tensors}
    weights = {name: lazy for name, lazy in lazy_tensors_of(checkpoint).items() if name in names}
    try:
        write_one(weights, path)
    except OSError as error:
        raise OnecurveError(f"{path}: cannot be written ({error.strerror or error})") from None

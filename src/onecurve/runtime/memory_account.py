"""What a rank uses its memory for."""

from collections.abc import Iterable

from torch import Tensor

from onecurve.apply.base_part import BasePart
from onecurve.train.manual_trainer import ManualTrainer
from onecurve.train.trainer import Trainer


def memory_components(
    part: BasePart, trainer: Trainer | ManualTrainer, process_bytes: int, peak: int
) -> dict[str, int]:
    """Return the bytes of a rank by component, after a step. They add up to `peak`.

    Activations, with the buffers of the engines, are what is left.
    """
    gradients = (tensor.local.grad for tensor in part.trainable)
    states = (state for update in trainer.updates.values() for state in update.state().values())
    values = (value for state in states for value in state.values())
    known = {
        "weights": _bytes(tensor.local for tensor in part.state),
        "gradients": _bytes(gradient for gradient in gradients if gradient is not None),
        "optimizer": _bytes(value for value in values if isinstance(value, Tensor)),
        "process": process_bytes,
    }
    return {**known, "activations": max(0, peak - sum(known.values()))}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)

"""torch's SyncBatchNorm as a batch norm of any device: onecurve synchronizes all batch norms itself."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class AnyBatchNorm(_BatchNorm):
    """Batch norm over inputs of any number of dimensions from 2."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")


def without_sync_batch_norm(model: nn.Module) -> nn.Module:
    """Replace the class of each SyncBatchNorm, which runs on GPUs only and needs a process group, in place."""
    for module in model.modules():
        if type(module) is nn.SyncBatchNorm:
            module.__class__ = AnyBatchNorm  # type: ignore[assignment]
    return model

"""A loss that compares the samples of a batch with each other, so that it needs the embeddings of all of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError

TWO_PASSES = "a loss over the whole batch needs two passes, which a pipeline does not run"


class WholeBatchLoss(nn.Module):
    """A loss of the embeddings of a whole batch. `onecurve.loss.whole_batch` makes one.

    It is a module so that weights and buffers of the user's functions, if they are modules, go to the device with it.
    """

    def __init__(self, embed: Callable[[Any], Any], loss: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._embed, self._loss = embed, loss

    @property
    def name(self) -> str:
        """The name of the function that the embeddings are given to."""
        return str(getattr(self._loss, "__qualname__", self._loss))

    def forward(self, output: Any, target: Any) -> Any:
        """The loss of one output, as if its samples were the whole batch."""
        return self.of_embeddings(self.embeddings(output), target)

    def embeddings(self, output: Any) -> Any:
        """What the loss needs of a model's output: a tensor, or a tuple, list or dict of tensors."""
        try:
            embeddings = self._embed(output)
        except Exception as error:
            raise UserCodeError(f"loss.whole_batch: embed raised {type(error).__name__}: {error}") from error
        for leaf in pytree.tree_leaves(embeddings):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                raise OnecurveError(
                    "loss.whole_batch: embed must return floating-point tensors, or a tuple or dict of them, got "
                    f"{leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__}"
                )
        return embeddings

    def of_embeddings(self, embeddings: Any, target: Any) -> Any:
        """The loss of the embeddings of a whole batch and their targets."""
        return self._loss(embeddings, target)

    def per_sample(self, output: Any, target: Any) -> Tensor:  # noqa: ARG002
        """A value for each sample that depends on its embeddings alone. Whether a batch can be split is tested with it:
        the embedding of a sample must not depend on the others."""
        leaves = [leaf for leaf in pytree.tree_leaves(self.embeddings(output)) if leaf.dim()]
        values = [leaf.reshape(len(leaf), -1) for leaf in leaves]
        return torch.stack([(each * each.abs().sqrt().cos()).sum(1) for each in values]).sum(0)


def splittable(loss: Any) -> Any:
    """The loss, or what stands for it in tests that it can be split."""
    return loss.per_sample if isinstance(loss, WholeBatchLoss) else loss

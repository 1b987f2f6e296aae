"""Activation checkpointing by the model itself (torch.utils.checkpoint) within a pipeline stage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint

Recomputation = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Checkpointed function → the function that backward calls to recompute it."""


@contextmanager
def model_checkpoints(recomputation: Recomputation) -> Iterator[None]:
    """A context in which torch.utils.checkpoint recomputes `recomputation(function)` instead of `function`.

    A reentrant checkpoint is replaced by one that is not, which computes the same. Within a reentrant one, hooks would
    see outputs without their gradient functions, so that a stage would send tensors through which no gradient flows.
    """
    generator, function = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction

    def recompute_differently(checkpointed: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
        return generator(recomputation(checkpointed), *arguments, **kwargs)

    class NonReentrant:
        @staticmethod
        def apply(checkpointed: Callable[..., Any], preserve_rng_state: bool, *arguments: Any) -> Any:
            return checkpoint.checkpoint(
                checkpointed, *arguments, use_reentrant=False, preserve_rng_state=preserve_rng_state
            )

    checkpoint._checkpoint_without_reentrant_generator = recompute_differently  # type: ignore[assignment]
    checkpoint.CheckpointFunction = NonReentrant  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        checkpoint._checkpoint_without_reentrant_generator = generator
        checkpoint.CheckpointFunction = function  # type: ignore[misc]

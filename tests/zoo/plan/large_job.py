"""What the jobs in this folder share: random samples, and a job with the settings of a long pre-training."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class RandomSamples:
    """A dataset that makes up each sample. Planning reads only a few of them."""

    def __init__(self, sample: Callable[[], Any]) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, _: int) -> Any:
        return self._sample()


def token_samples(vocabulary: int, length: int) -> Callable[[], RandomSamples]:
    """Samples for a Hugging Face language model, which computes its loss itself."""

    def sample() -> tuple[dict[str, Tensor], int]:
        tokens = torch.randint(0, vocabulary, (length,))
        return {"input_ids": tokens, "labels": tokens}, 0

    return lambda: RandomSamples(sample)


def image_samples(size: int = 224, classes: int = 1000) -> Callable[[], RandomSamples]:
    return lambda: RandomSamples(lambda: (torch.randn(3, size, size), int(torch.randint(classes, ()))))


def inside_loss(output: Any, _: Any) -> Tensor:
    """The loss that a Hugging Face model has computed."""
    return output.loss


def classification_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none")


def large_job(
    model: Callable[[], nn.Module],
    data: Callable[[], RandomSamples],
    batch: int,
    loss: Callable[[Any, Any], Tensor] = inside_loss,
) -> oc.Job:
    return oc.Job(
        model=model,
        data=data,
        loss=loss,
        optimizer=oc.AdamW(lr=1e-4),
        clip=1.0,
        global_batch=batch,
        steps=10_000,
    )

"""Whole-batch losses: a learned temperature with dropout, or labels with batch norm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc
from onecurve.device.collectives import Group
from onecurve.train import gathered_batch


class Pairs:
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.tensor(index % 5)


class Towers(nn.Module):
    def __init__(self, normed: bool) -> None:
        super().__init__()
        middle = nn.BatchNorm1d(16) if normed else nn.Dropout(0.2)
        self.one = nn.Sequential(nn.Linear(8, 16), middle, nn.ReLU(), nn.Linear(16, 4))
        self.other = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.log_scale = None if normed else nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.one(x), self.other(x), *([] if self.log_scale is None else [self.log_scale])


def same_label(embeddings: dict[str, Tensor], label: Tensor) -> Tensor:
    """Cross-entropy with all samples of the same label."""
    logits = F.normalize(embeddings["a"]) @ F.normalize(embeddings["b"]).T * 5
    same = (label[:, None] == label[None]).to(logits.dtype)
    return F.cross_entropy(logits, same / same.sum(1, keepdim=True), reduction="none")


def see_only_own_samples() -> None:
    """Break the loss: each rank has only its own samples as negatives."""
    whole = gathered_batch.all_gather

    def own(group: Group, values: Tensor) -> Tensor:
        if values.is_floating_point() and group is not None:
            return values.expand(group.size(), *values.shape)
        return whole(group, values)

    gathered_batch.all_gather = own


def job(kind: str = "clip", steps: int = 6, fault: bool = False) -> oc.Job:
    if fault:
        see_only_own_samples()
    losses = {
        "clip": oc.loss.clip(),
        "labels": oc.loss.whole_batch(lambda output: {"a": output[0], "b": output[1]}, same_label),
    }
    return oc.Job(
        model=lambda: Towers(normed=kind == "labels"),
        loss=losses[kind],
        data=Pairs,
        optimizer=oc.AdamW(lr=1e-2),
        clip=1.0,
        global_batch=24,
        steps=steps,
        evaluate=oc.Evaluate(Pairs, every=3),
    )

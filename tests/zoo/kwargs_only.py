"""Keyword-only inputs, and an output that is a dataclass, a dict or a tuple with the loss inside."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from common import ResidualBlock, training_job
from torch import nn


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.segments, self.head = nn.Embedding(64, 16), nn.Embedding(2, 16), nn.Linear(16, 64)
        self.blocks = nn.ModuleList(ResidualBlock(16) for _ in range(2))

    def forward(self, *, tokens, labels, segment=None):
        x = self.tokens(tokens)
        if segment is not None:
            x = x + self.segments(segment)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return self.output(F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)

    def output(self, loss, logits):
        return Output(loss, logits)


class DictLanguageModel(LanguageModel):
    def output(self, loss, logits):
        return {"loss": loss, "logits": logits}


class TupleLanguageModel(LanguageModel):
    def output(self, loss, logits):
        return loss, logits


def sample(_index):
    tokens = torch.randint(64, (9,))
    return {"tokens": tokens[:-1], "labels": tokens[1:], "segment": torch.randint(2, (8,))}, 0


MODELS = {"dataclass": LanguageModel, "dict": DictLanguageModel, "tuple": TupleLanguageModel}
LOSSES = {
    "dataclass": lambda output, _target: output.loss,
    "dict": lambda output, _target: output["loss"],
    "tuple": lambda output, _target: output[0],
}


def job(out: str = "dataclass"):
    return training_job(MODELS[out], sample, LOSSES[out])

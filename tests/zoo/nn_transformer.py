"""nn.Transformer, encoder and decoder, as in PyTorch's translation tutorial."""

import torch
from common import training_job
from torch import nn

import onecurve as oc


class Translator(nn.Module):
    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(32, width) * 0.02)
        self.body = nn.Transformer(width, 4, 2, 2, 64, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).to(self.positions)
        source = self.source(source) + self.positions[: source.shape[1]]
        target = self.target(target) + self.positions[: target.shape[1]]
        return self.head(self.body(source, target, tgt_mask=mask, tgt_is_causal=True))


def sample(_index):
    source, target = torch.randint(64, (12,)), torch.randint(64, (11,))
    return (source, target[:-1]), target[1:]


def job():
    return training_job(Translator, sample, oc.loss.next_token)

"""Mixture of experts in plain torch: each token goes to its best two of four experts, selected by index."""

import torch
from common import next_token_text, training_job
from torch import nn

import onecurve as oc


class Experts(nn.Module):
    def __init__(self, width, experts=4, choices=2):
        super().__init__()
        self.choices = choices
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x):
        tokens = x.flatten(0, -2)
        scores, chosen = self.router(tokens).topk(self.choices)
        weights = scores.softmax(-1)
        output = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(chosen == number)
            output = output.index_add(0, token, weights[token, choice, None] * expert(tokens[token]))
        return output.view_as(x)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.experts = Experts(width)

    def forward(self, x):
        x = x + self.mix(self.norm1(x))[0]
        return x + self.experts(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=64, width=32, depth=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def job():
    return training_job(LanguageModel, next_token_text, oc.loss.next_token)

"""Sizes, random data, losses and the training job that the models of the zoo share."""

import torch
import torch.nn.functional as F
from torch import nn

import onecurve as oc

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2}
TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class RandomData:
    """A dataset of 64 samples that a function draws; onecurve seeds the random generators for each sample."""

    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.sample(index)


def causal_text(_index):
    """A sample as Trainer feeds it to a causal language model: a dict with labels, and the model returns the loss."""
    tokens = torch.randint(3, 64, (16,))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}, 0


def padded_text(index):
    """A text of 6 to 16 tokens with a label inside, for sequence classification."""
    tokens, length = torch.randint(3, 64, (16,)), 6 + index % 11
    tokens[length:] = 0
    return {"input_ids": tokens, "attention_mask": (torch.arange(16) < length).long(), "labels": index % 4}, 0


def text_pair(_index):
    """A source text and the labels of its translation, for an encoder-decoder model."""
    source = torch.randint(3, 64, (16,))
    labels = torch.randint(3, 64, (12,))
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels}, 0


def next_token_text(_index):
    """A text and the same text one token further, as positional input and target."""
    tokens = torch.randint(64, (13,))
    return tokens[:-1], tokens[1:]


def images(channels=3, size=32, classes=8):
    return lambda index: (torch.randn(channels, size, size), index % classes)


def vectors(index):
    return torch.randn(12), index % 8


def model_loss(output, _target):
    """The loss that a Hugging Face model computes itself when its input contains labels."""
    return output.loss


def classification(output, target):
    return F.cross_entropy(getattr(output, "logits", output), target, reduction="none")


def noise_error(output, noise):
    """The loss of a diffusion model of diffusers."""
    return F.mse_loss(output.sample, noise, reduction="none").flatten(1).mean(1)


def training_job(model, sample=causal_text, loss=model_loss, **more):
    """A job of 4 steps with AdamW; `more` adds to or replaces its settings."""
    settings = {"optimizer": oc.AdamW(lr=1e-3), "clip": 1.0, "global_batch": 8, "steps": 4, "save": None}
    return oc.Job(model=model, data=lambda: RandomData(sample), loss=loss, **{**settings, **more})


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

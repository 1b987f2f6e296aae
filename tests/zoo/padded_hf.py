"""Llama on padded text: the model's loss is a mean over the tokens of the micro-batch."""

import torch
from common import SIZES, TOKENS, model_loss, training_job
from transformers import LlamaConfig, LlamaForCausalLM

import onecurve as oc


def sample(index):
    tokens, inside = torch.randint(3, 64, (16,)), torch.arange(16) < 6 + index % 11
    labels = torch.where(inside, tokens, -100)
    return {"input_ids": torch.where(inside, tokens, 0), "attention_mask": inside.long(), "labels": labels}, labels


def weighted(output, labels):
    """The fix that onecurve's error message names."""
    count = (labels[:, 1:] != -100).sum()
    return oc.Weighted(output.loss * count, count)


def job(form: str = "scalar"):
    losses = {"scalar": model_loss, "weighted": weighted}
    return training_job(
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, **TOKENS)), sample, losses[form]
    )

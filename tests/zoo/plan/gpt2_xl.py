"""GPT-2 XL: 48 layers, 1.56 billion parameters."""

from large_job import large_job, token_samples
from transformers import GPT2Config, GPT2LMHeadModel

import onecurve as oc


def job(length: int = 1024, batch: int = 512) -> oc.Job:
    config = GPT2Config(n_embd=1600, n_head=25, n_layer=48)
    return large_job(lambda: GPT2LMHeadModel(config), token_samples(50257, length), batch)

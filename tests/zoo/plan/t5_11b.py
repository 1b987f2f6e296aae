"""T5 11B: an encoder and a decoder with wide feed-forward layers."""

import torch
from large_job import RandomSamples, large_job
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

import onecurve as oc


def sample() -> tuple[dict[str, Tensor], int]:
    return {"input_ids": torch.randint(3, 32_000, (512,)), "labels": torch.randint(3, 32_000, (114,))}, 0


def job(batch: int = 512) -> oc.Job:
    config = T5Config(
        vocab_size=32_128,
        d_model=1024,
        d_kv=128,
        d_ff=65_536,
        num_layers=24,
        num_heads=128,
        decoder_start_token_id=0,
    )
    return large_job(lambda: T5ForConditionalGeneration(config), lambda: RandomSamples(sample), batch)

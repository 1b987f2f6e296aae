"""Llama 3 8B."""

from large_job import large_job, token_samples
from transformers import LlamaConfig, LlamaForCausalLM

import onecurve as oc


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=500_000.0,
    )


def job(length: int = 8192, batch: int = 128) -> oc.Job:
    return large_job(lambda: LlamaForCausalLM(config()), token_samples(128_256, length), batch)

"""Llama 3 70B."""

from large_job import large_job, token_samples
from transformers import LlamaConfig, LlamaForCausalLM

import onecurve as oc


def job(length: int = 8192, batch: int = 512) -> oc.Job:
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=500_000.0,
    )
    return large_job(lambda: LlamaForCausalLM(config), token_samples(128_256, length), batch)

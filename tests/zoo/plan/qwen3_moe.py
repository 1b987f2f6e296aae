"""Qwen3 30B-A3B: 128 experts, of which each token uses 8."""

from large_job import large_job, token_samples
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import onecurve as oc


def job(length: int = 4096, batch: int = 256) -> oc.Job:
    config = Qwen3MoeConfig(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    )
    return large_job(lambda: Qwen3MoeForCausalLM(config), token_samples(151_936, length), batch)

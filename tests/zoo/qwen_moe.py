"""Qwen 3 MoE: many small experts without a shared one."""

from common import SIZES, TOKENS, training_job
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


def job(experts: str = "eager"):
    config = {
        **SIZES,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "experts_implementation": experts,
    }
    return training_job(lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**config, **TOKENS)))

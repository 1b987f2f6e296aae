"""Qwen 2 MoE: routed experts and a shared expert with a gate."""

from common import SIZES, TOKENS, training_job
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM


def job(experts: str = "eager"):
    config = {
        **SIZES,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 32,
        "experts_implementation": experts,
    }
    return training_job(lambda: Qwen2MoeForCausalLM(Qwen2MoeConfig(**config, **TOKENS)))

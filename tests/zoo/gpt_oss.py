"""gpt-oss: attention sinks, alternating sliding windows and experts stored in one tensor."""

from common import SIZES, TOKENS, training_job
from transformers import GptOssConfig, GptOssForCausalLM


def job(experts: str = "eager"):
    config = {
        **SIZES,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "experts_implementation": experts,
    }
    return training_job(lambda: GptOssForCausalLM(GptOssConfig(**config, **TOKENS)))

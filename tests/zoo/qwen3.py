"""Qwen 3: normalization of queries and keys in each head."""

from common import SIZES, TOKENS, training_job
from transformers import Qwen3Config, Qwen3ForCausalLM


def job():
    config = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
    return training_job(lambda: Qwen3ForCausalLM(Qwen3Config(**config, **TOKENS)))

"""Mistral: sliding-window attention and a key-value cache."""

from common import SIZES, TOKENS, training_job
from transformers import MistralConfig, MistralForCausalLM


def job(cache: bool = True):
    config = {**SIZES, "num_key_value_heads": 2, "sliding_window": 8, "use_cache": cache}
    return training_job(lambda: MistralForCausalLM(MistralConfig(**config, **TOKENS)))

"""Gemma 2: sliding-window attention and a key-value cache."""

from common import SIZES, TOKENS, training_job
from transformers import Gemma2Config, Gemma2ForCausalLM


def job(cache: bool = True):
    config = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8, "use_cache": cache}
    return training_job(lambda: Gemma2ForCausalLM(Gemma2Config(**config, **TOKENS)))

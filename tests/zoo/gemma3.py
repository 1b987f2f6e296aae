"""Gemma 3: alternating sliding-window and full attention, with a key-value cache."""

from common import SIZES, TOKENS, training_job
from transformers import Gemma3ForCausalLM, Gemma3TextConfig


def job(cache: bool = True):
    config = {
        **SIZES,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "use_cache": cache,
    }
    return training_job(lambda: Gemma3ForCausalLM(Gemma3TextConfig(**config, **TOKENS)))

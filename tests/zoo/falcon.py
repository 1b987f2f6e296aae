"""Falcon: multi-query attention, or grouped queries with parallel blocks in the new architecture."""

from common import TOKENS, training_job
from transformers import FalconConfig, FalconForCausalLM


def job(new: bool = False):
    config = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_kv_heads": 2,
        "new_decoder_architecture": new,
        "multi_query": not new,
    }
    return training_job(lambda: FalconForCausalLM(FalconConfig(**config, **TOKENS)))

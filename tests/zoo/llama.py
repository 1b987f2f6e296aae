"""Llama: grouped-query attention, rotary positions and a gated MLP."""

from common import SIZES, TOKENS, training_job
from transformers import LlamaConfig, LlamaForCausalLM


def job(depth: int = 2):
    config = {**SIZES, "num_hidden_layers": depth, "num_key_value_heads": 2}
    return training_job(lambda: LlamaForCausalLM(LlamaConfig(**config, **TOKENS)))

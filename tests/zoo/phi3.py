"""Phi-3: fused query-key-value and gate-up projections."""

from common import SIZES, TOKENS, training_job
from transformers import Phi3Config, Phi3ForCausalLM


def job(kv: int = 4):
    return training_job(lambda: Phi3ForCausalLM(Phi3Config(**SIZES, num_key_value_heads=kv, **TOKENS)))

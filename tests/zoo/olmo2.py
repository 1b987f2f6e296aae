"""OLMo 2: normalization after attention and MLP, and of full queries and keys."""

from common import SIZES, TOKENS, training_job
from transformers import Olmo2Config, Olmo2ForCausalLM


def job():
    return training_job(lambda: Olmo2ForCausalLM(Olmo2Config(**SIZES, num_key_value_heads=2, **TOKENS)))

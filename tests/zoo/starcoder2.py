"""StarCoder2: grouped-query attention with biases, layer norm and a plain MLP."""

from common import SIZES, TOKENS, training_job
from transformers import Starcoder2Config, Starcoder2ForCausalLM


def job():
    return training_job(lambda: Starcoder2ForCausalLM(Starcoder2Config(**SIZES, num_key_value_heads=2, **TOKENS)))

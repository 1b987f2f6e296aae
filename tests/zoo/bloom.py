"""BLOOM: ALiBi position biases and a fused query-key-value projection."""

from common import TOKENS, training_job
from transformers import BloomConfig, BloomForCausalLM


def job():
    return training_job(lambda: BloomForCausalLM(BloomConfig(hidden_size=32, n_head=4, n_layer=2, **TOKENS)))

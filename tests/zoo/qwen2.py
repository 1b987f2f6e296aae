"""Qwen 2: biases on the query-key-value projections and tied embeddings."""

from common import SIZES, TOKENS, training_job
from transformers import Qwen2Config, Qwen2ForCausalLM


def job():
    config = {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return training_job(lambda: Qwen2ForCausalLM(Qwen2Config(**config, **TOKENS)))

"""GPT-NeoX: parallel residuals and a query-key-value projection interleaved by head."""

from common import SIZES, TOKENS, training_job
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


def job():
    return training_job(lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, max_position_embeddings=32, **TOKENS)))

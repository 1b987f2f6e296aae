"""GPT-2: learned positions and a fused query-key-value projection stored as Conv1D."""

from common import TOKENS, training_job
from transformers import GPT2Config, GPT2LMHeadModel


def job():
    return training_job(lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=32, **TOKENS)))

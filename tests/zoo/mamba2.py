"""Mamba 2: a state-space model computed in chunks, with heads and groups."""

from common import TOKENS, training_job
from transformers import Mamba2Config, Mamba2ForCausalLM


def job():
    config = {
        "hidden_size": 32,
        "state_size": 8,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 16,
        "n_groups": 2,
        "chunk_size": 8,
    }
    return training_job(lambda: Mamba2ForCausalLM(Mamba2Config(**config, **TOKENS)))

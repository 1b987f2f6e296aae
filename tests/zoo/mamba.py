"""Mamba: a selective state-space model with a causal convolution."""

from common import TOKENS, training_job
from transformers import MambaConfig, MambaForCausalLM


def job():
    config = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "use_mambapy": False}
    return training_job(lambda: MambaForCausalLM(MambaConfig(**config, **TOKENS)))

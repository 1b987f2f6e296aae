"""RWKV: a recurrent language model whose linear attention is a loop over time."""

from common import TOKENS, training_job
from transformers import RwkvConfig, RwkvForCausalLM


def job():
    config = {
        "hidden_size": 32,
        "attention_hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "context_length": 32,
        "use_cache": False,
    }
    return training_job(lambda: RwkvForCausalLM(RwkvConfig(**config, **TOKENS)))

"""OPT: learned positions with an offset, and layers dropped at random on request."""

from common import TOKENS, training_job
from transformers import OPTConfig, OPTForCausalLM


def job(layerdrop: float = 0.0):
    config = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 32,
        "layerdrop": layerdrop,
    }
    return training_job(lambda: OPTForCausalLM(OPTConfig(**config, **TOKENS)))

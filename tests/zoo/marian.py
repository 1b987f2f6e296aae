"""Marian: a translation model with sinusoidal positions and a bias on the output logits."""

from common import TOKENS, text_pair, training_job
from transformers import MarianConfig, MarianMTModel


def job():
    config = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 32,
        "decoder_start_token_id": 0,
    }
    return training_job(lambda: MarianMTModel(MarianConfig(**config, **TOKENS)), text_pair)

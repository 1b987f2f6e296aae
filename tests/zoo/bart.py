"""BART: encoder and decoder with shared embeddings, and layers dropped at random on request."""

from common import TOKENS, text_pair, training_job
from transformers import BartConfig, BartForConditionalGeneration


def job(layerdrop: float = 0.0):
    config = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 32,
        "decoder_start_token_id": 2,
        "encoder_layerdrop": layerdrop,
        "decoder_layerdrop": layerdrop,
    }
    return training_job(lambda: BartForConditionalGeneration(BartConfig(**config, **TOKENS)), text_pair)

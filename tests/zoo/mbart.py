"""mBART: an encoder-decoder model that normalizes before each layer and shifts labels around the language token."""

from common import TOKENS, text_pair, training_job
from transformers import MBartConfig, MBartForConditionalGeneration


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
    }
    return training_job(lambda: MBartForConditionalGeneration(MBartConfig(**config, **TOKENS)), text_pair)

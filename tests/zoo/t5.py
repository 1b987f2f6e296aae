"""T5: relative-position biases that the first layer owns and all layers use."""

from common import text_pair, training_job
from transformers import T5Config, T5ForConditionalGeneration


def job(tied: bool = True, gated: bool = False):
    config = {
        "vocab_size": 64,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "tie_word_embeddings": tied,
        "feed_forward_proj": "gated-gelu" if gated else "relu",
    }
    return training_job(lambda: T5ForConditionalGeneration(T5Config(**config)), text_pair)

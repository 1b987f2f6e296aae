"""DeBERTa v2: disentangled attention, whose relative-position embedding is one parameter for all layers."""

from common import SIZES, TOKENS, padded_text, training_job
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification


def build():
    config = DebertaV2Config(
        **SIZES,
        max_position_embeddings=32,
        num_labels=4,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        **TOKENS,
    )
    return DebertaV2ForSequenceClassification(config)


def job():
    return training_job(build, padded_text)

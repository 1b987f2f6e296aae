"""ModernBERT: an encoder with rotary positions, alternating local and global attention and a gated MLP."""

from common import SIZES, TOKENS, padded_text, training_job
from transformers import ModernBertConfig, ModernBertForSequenceClassification


def job():
    config = {
        **SIZES,
        "max_position_embeddings": 32,
        "num_labels": 4,
        "local_attention": 8,
        "layer_types": ["full_attention", "sliding_attention"],
        "cls_token_id": 1,
        "sep_token_id": 2,
    }
    return training_job(lambda: ModernBertForSequenceClassification(ModernBertConfig(**config, **TOKENS)), padded_text)

"""MobileBERT: bottlenecks around each layer, several small MLPs, and norms without statistics."""

from common import TOKENS, padded_text, training_job
from transformers import MobileBertConfig, MobileBertForSequenceClassification


def job():
    config = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "num_feedforward_networks": 2,
        "max_position_embeddings": 32,
        "num_labels": 4,
    }
    return training_job(lambda: MobileBertForSequenceClassification(MobileBertConfig(**config, **TOKENS)), padded_text)

"""DistilBERT: a small encoder without segment embeddings."""

from common import TOKENS, padded_text, training_job
from transformers import DistilBertConfig, DistilBertForSequenceClassification


def build():
    config = DistilBertConfig(
        dim=32, n_heads=4, n_layers=2, hidden_dim=64, max_position_embeddings=32, num_labels=4, **TOKENS
    )
    return DistilBertForSequenceClassification(config)


def job():
    return training_job(build, padded_text)

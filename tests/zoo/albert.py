"""ALBERT: one layer that is applied several times, so its parameters are shared over the depth."""

from common import SIZES, TOKENS, padded_text, training_job
from transformers import AlbertConfig, AlbertForSequenceClassification


def job():
    config = {**SIZES, "embedding_size": 16, "max_position_embeddings": 32, "num_labels": 4}
    return training_job(lambda: AlbertForSequenceClassification(AlbertConfig(**config, **TOKENS)), padded_text)

"""ELECTRA: embeddings narrower than the encoder, with a projection between them."""

from common import SIZES, TOKENS, padded_text, training_job
from transformers import ElectraConfig, ElectraForSequenceClassification


def job():
    config = {**SIZES, "embedding_size": 16, "max_position_embeddings": 32, "num_labels": 4}
    return training_job(lambda: ElectraForSequenceClassification(ElectraConfig(**config, **TOKENS)), padded_text)

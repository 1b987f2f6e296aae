"""RoBERTa: positions counted from the padding of each text."""

from common import SIZES, TOKENS, padded_text, training_job
from transformers import RobertaConfig, RobertaForSequenceClassification


def job():
    config = {**SIZES, "max_position_embeddings": 32, "num_labels": 4, "type_vocab_size": 1}
    return training_job(lambda: RobertaForSequenceClassification(RobertaConfig(**config, **TOKENS)), padded_text)

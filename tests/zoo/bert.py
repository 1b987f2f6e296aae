"""BERT: sequence classification of padded text with the labels in the input."""

from common import SIZES, TOKENS, padded_text, training_job
from transformers import BertConfig, BertForSequenceClassification


def job():
    return training_job(
        lambda: BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=32, num_labels=4, **TOKENS)),
        padded_text,
    )

"""XLM-RoBERTa: masked-language modelling with the output layer tied to the embedding."""

import torch
from common import SIZES, TOKENS, training_job
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM


def sample(index):
    """A text in which 3 tokens are masked: as many in every sample, so that a mean over tokens is one over samples."""
    tokens, masked = torch.randint(3, 64, (16,)), (index + torch.tensor([0, 5, 10])) % 16
    labels = torch.full((16,), -100)
    labels[masked] = tokens[masked]
    return {"input_ids": tokens.index_fill(0, masked, 63), "labels": labels}, 0


def job():
    config = {**SIZES, "max_position_embeddings": 32, "type_vocab_size": 1}
    return training_job(lambda: XLMRobertaForMaskedLM(XLMRobertaConfig(**config, **TOKENS)), sample)

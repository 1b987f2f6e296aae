"""wav2vec 2.0 with SpecAugment, whose masks are drawn with NumPy in forward."""

import torch
from common import SIZES, training_job
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification


def sample(index):
    return {"input_values": torch.randn(1280), "labels": index % 4}, 0


def job(layerdrop: float = 0.0):
    config = {
        **SIZES,
        "conv_dim": [16, 16],
        "conv_stride": [5, 2],
        "conv_kernel": [10, 3],
        "hidden_dropout": 0.0,
        "activation_dropout": 0.0,
        "attention_dropout": 0.0,
        "feat_proj_dropout": 0.0,
        "final_dropout": 0.0,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "num_labels": 4,
        "layerdrop": layerdrop,
        "mask_time_prob": 0.3,
        "mask_time_length": 2,
        "vocab_size": 64,
    }
    return training_job(lambda: Wav2Vec2ForSequenceClassification(Wav2Vec2Config(**config)), sample)

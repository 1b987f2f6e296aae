"""Audio Spectrogram Transformer: overlapping patches of a spectrogram and two class tokens."""

import torch
from common import SIZES, classification, training_job
from transformers import ASTConfig, ASTForAudioClassification


def sample(index):
    return {"input_values": torch.randn(32, 16)}, index % 4


def job():
    config = {
        **SIZES,
        "patch_size": 8,
        "frequency_stride": 4,
        "time_stride": 8,
        "max_length": 32,
        "num_mel_bins": 16,
        "num_labels": 4,
    }
    return training_job(lambda: ASTForAudioClassification(ASTConfig(**config)), sample, classification)

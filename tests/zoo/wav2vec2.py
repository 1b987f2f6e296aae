"""wav2vec 2.0: speech classification with a convolutional feature encoder and weight-normed positions."""

import torch
from common import SIZES, training_job
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification


def sample(index):
    return {"input_values": torch.randn(640), "labels": index % 4}, 0


def build():
    config = Wav2Vec2Config(
        **SIZES,
        conv_dim=[16, 16],
        conv_stride=[5, 2],
        conv_kernel=[10, 3],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        num_labels=4,
        layerdrop=0.0,
        mask_time_prob=0.0,
        vocab_size=64,
    )
    return Wav2Vec2ForSequenceClassification(config)


def job():
    return training_job(build, sample)

"""HuBERT: speech classification with a weighted sum over the hidden states of all layers."""

import torch
from common import SIZES, training_job
from transformers import HubertConfig, HubertForSequenceClassification


def sample(index):
    return {"input_values": torch.randn(640), "labels": index % 4}, 0


def build():
    config = HubertConfig(
        **SIZES,
        conv_dim=[16, 16],
        conv_stride=[5, 2],
        conv_kernel=[10, 3],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        num_labels=4,
        layerdrop=0.0,
        mask_time_prob=0.0,
        use_weighted_layer_sum=True,
        vocab_size=64,
    )
    return HubertForSequenceClassification(config)


def job():
    return training_job(build, sample)

"""ViLT: text and image patches in one encoder, which draws the order of the patches at random."""

import torch
from common import SIZES, TOKENS, classification, training_job
from transformers import ViltConfig, ViltForImagesAndTextClassification


def sample(index):
    tokens = torch.randint(3, 64, (8,))
    inputs = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(2, 3, 16, 16),
        "pixel_mask": torch.ones(2, 16, 16, dtype=torch.long),
    }
    return inputs, index % 4


def build():
    config = ViltConfig(
        **SIZES,
        image_size=16,
        patch_size=4,
        max_position_embeddings=16,
        num_images=2,
        modality_type_vocab_size=3,
        num_labels=4,
        **TOKENS,
    )
    return ViltForImagesAndTextClassification(config)


def job():
    return training_job(build, sample, classification)

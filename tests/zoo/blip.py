"""BLIP: image captioning, a vision encoder with a text decoder that attends to it."""

import torch
from common import SIZES, TOKENS, training_job
from transformers import BlipConfig, BlipForConditionalGeneration


def sample(_index):
    tokens = torch.randint(3, 64, (10,))
    inputs = {
        "pixel_values": torch.randn(3, 16, 16),
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens,
    }
    return inputs, 0


def build():
    config = BlipConfig(
        text_config={**SIZES, "encoder_hidden_size": 32, "max_position_embeddings": 16, **TOKENS},
        vision_config={**SIZES, "image_size": 16, "patch_size": 4},
        projection_dim=16,
    )
    return BlipForConditionalGeneration(config)


def job():
    return training_job(build, sample)

"""LLaVA: a CLIP vision tower whose features replace the image tokens of a Llama."""

import torch
from common import SIZES, TOKENS, training_job
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

IMAGE_TOKEN = 63


def sample(_index):
    image_tokens = torch.full((16,), IMAGE_TOKEN)
    text = torch.randint(3, 60, (8,))
    tokens = torch.cat([image_tokens, text])
    inputs = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(3, 16, 16),
        "labels": torch.where(tokens == IMAGE_TOKEN, -100, tokens),
    }
    return inputs, 0


def build():
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**SIZES, image_size=16, patch_size=4, projection_dim=16),
        text_config=LlamaConfig(**SIZES, num_key_value_heads=2, **TOKENS),
        image_token_index=IMAGE_TOKEN,
        image_seq_length=16,
    )
    return LlavaForConditionalGeneration(config)


def job():
    return training_job(build, sample)

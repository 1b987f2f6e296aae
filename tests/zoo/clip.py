"""CLIP: a text tower and an image tower with a contrastive loss over the batch."""

import torch
import torch.nn.functional as F
from common import SIZES, TOKENS, training_job
from transformers import CLIPConfig, CLIPModel


def sample(_index):
    tokens = torch.randint(3, 64, (10,))
    tokens[-1] = 2
    inputs = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(3, 16, 16),
    }
    return inputs, 0


def build():
    config = CLIPConfig(
        text_config={**SIZES, "max_position_embeddings": 16, "projection_dim": 16, **TOKENS},
        vision_config={**SIZES, "image_size": 16, "patch_size": 4, "projection_dim": 16},
        projection_dim=16,
    )
    return CLIPModel(config)


def contrastive(output, target, reduction="mean"):
    target = torch.arange(len(output.logits_per_text), device=output.logits_per_text.device)
    by_text = F.cross_entropy(output.logits_per_text, target, reduction=reduction)
    by_image = F.cross_entropy(output.logits_per_image, target, reduction=reduction)
    return (by_text + by_image) / 2


def contrastive_per_sample(output, target):
    """A way around the refusal of `contrastive`: one value per sample, but each still depends on the micro-batch."""
    return contrastive(output, target, reduction="none")


def job(loss: str = "scalar"):
    losses = {"scalar": contrastive, "per_sample": contrastive_per_sample}
    return training_job(build, sample, losses[loss])

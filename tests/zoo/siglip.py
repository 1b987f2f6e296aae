"""SigLIP: two towers with a sigmoid loss, here on matching pairs only, so that the batch can be split."""

import torch
import torch.nn.functional as F
from common import SIZES, TOKENS, training_job
from transformers import SiglipConfig, SiglipModel


def sample(_index):
    return {"input_ids": torch.randint(3, 64, (8,)), "pixel_values": torch.randn(3, 16, 16)}, 0


def build():
    config = SiglipConfig(
        text_config={**SIZES, "max_position_embeddings": 8, "projection_size": 32, **TOKENS},
        vision_config={**SIZES, "image_size": 16, "patch_size": 4},
    )
    return SiglipModel(config)


def matching_pairs(output, _target):
    return F.softplus(-output.logits_per_text.diagonal())


def job():
    return training_job(build, sample, matching_pairs)

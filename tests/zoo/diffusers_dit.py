"""Diffusion transformer (DiT): adaptive layer norm, and class labels dropped at random."""

import torch
from common import noise_error, training_job
from diffusers import DiTTransformer2DModel


def sample(index):
    inputs = {
        "hidden_states": torch.randn(4, 8, 8),
        "timestep": torch.randint(0, 1000, ()),
        "class_labels": torch.tensor(index % 5),
    }
    return inputs, torch.randn(4, 8, 8)


def build():
    return DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=1000,
    )


def job():
    return training_job(build, sample, noise_error)

"""UNet2DConditionModel of diffusers, as in Stable Diffusion XL: cross attention to text."""

import torch
from common import noise_error, training_job
from diffusers import UNet2DConditionModel


def sample(_index):
    inputs = {
        "sample": torch.randn(4, 16, 16),
        "timestep": torch.randint(0, 1000, ()),
        "encoder_hidden_states": torch.randn(7, 16),
    }
    return inputs, torch.randn(4, 16, 16)


def build():
    return UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        transformer_layers_per_block=2,
    )


def job():
    return training_job(build, sample, noise_error)

"""UNet2DModel of diffusers: predicts noise; the noise and its time step come with the sample."""

import torch
from common import noise_error, training_job
from diffusers import UNet2DModel


def sample(_index):
    image, noise, timestep = torch.randn(3, 16, 16), torch.randn(3, 16, 16), torch.randint(0, 1000, ())
    scale = torch.cos(timestep / 1000 * 1.57)
    return {"sample": scale * image + (1 - scale * scale).sqrt() * noise, "timestep": timestep}, noise


def build():
    return UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    )


def job():
    return training_job(build, sample, noise_error)

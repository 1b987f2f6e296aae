"""A UNet of the size of Stable Diffusion XL's, on latents of 128 × 128."""

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel
from large_job import RandomSamples, large_job
from torch import Tensor, nn

import onecurve as oc


def model() -> nn.Module:
    return UNet2DConditionModel(
        sample_size=128,
        in_channels=4,
        out_channels=4,
        block_out_channels=(320, 640, 1280),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        cross_attention_dim=2048,
        attention_head_dim=(5, 10, 20),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def sample() -> tuple[dict[str, Any], Tensor]:
    noise = torch.randn(4, 128, 128)
    conditions = {"text_embeds": torch.randn(1280), "time_ids": torch.randn(6)}
    inputs = {
        "sample": torch.randn(4, 128, 128),
        "timestep": torch.randint(0, 1000, ()),
        "encoder_hidden_states": torch.randn(77, 2048),
        "added_cond_kwargs": conditions,
    }
    return inputs, noise


def noise_loss(output: Any, noise: Tensor) -> Tensor:
    return F.mse_loss(output.sample, noise, reduction="none").flatten(1).mean(1)


def job(batch: int = 256) -> oc.Job:
    return large_job(model, lambda: RandomSamples(sample), batch, noise_loss)

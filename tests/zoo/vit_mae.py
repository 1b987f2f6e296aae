"""Masked autoencoder: forward draws the patches to hide, and the loss is on the hidden patches."""

import torch
from common import SIZES, training_job
from transformers import ViTMAEConfig, ViTMAEForPreTraining


def sample(_index):
    image = torch.randn(3, 16, 16)
    return {"pixel_values": image}, image


def hidden_patch_error(output, image):
    """The model's own loss, but per sample: the scalar cannot be tested, because evaluation draws patches too."""
    patches = image.unflatten(3, (4, 4)).unflatten(2, (4, 4)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    error = (output.logits - patches).pow(2).mean(2)
    return (error * output.mask).sum(1) / output.mask.sum(1)


def job():
    config = {
        **SIZES,
        "image_size": 16,
        "patch_size": 4,
        "decoder_hidden_size": 16,
        "decoder_num_attention_heads": 2,
        "decoder_num_hidden_layers": 1,
        "decoder_intermediate_size": 32,
    }
    return training_job(lambda: ViTMAEForPreTraining(ViTMAEConfig(**config)), sample, hidden_patch_error)

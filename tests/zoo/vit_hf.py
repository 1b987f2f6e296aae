"""ViT of transformers: image classification with the loss outside the model."""

from common import SIZES, classification, images, training_job
from transformers import ViTConfig, ViTForImageClassification


def job():
    return training_job(
        lambda: ViTForImageClassification(ViTConfig(**SIZES, image_size=16, patch_size=4, num_labels=8)),
        images(3, 16),
        classification,
    )

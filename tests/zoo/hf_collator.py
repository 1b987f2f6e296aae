"""A batch as a Hugging Face collator returns it: a BatchFeature instead of a dict."""

import torch
from common import SIZES, images, training_job
from transformers import ViTConfig, ViTForImageClassification
from transformers.feature_extraction_utils import BatchFeature


def collate(samples):
    pixels, labels = zip(*samples, strict=True)
    return BatchFeature({"pixel_values": torch.stack(pixels), "labels": torch.tensor(labels)}), 0


def job():
    return training_job(
        lambda: ViTForImageClassification(ViTConfig(**SIZES, image_size=16, patch_size=4, num_labels=8)),
        images(3, 16),
        collate=collate,
    )

"""ViT-H/14 on images of 224 × 224."""

from large_job import classification_loss, image_samples, large_job
from timm import create_model

import onecurve as oc


def job(batch: int = 4096) -> oc.Job:
    model = lambda: create_model("vit_huge_patch14_224", num_classes=1000)  # noqa: E731
    return large_job(model, image_samples(), batch, classification_loss)

"""ResNet-50 with batch norm, on images of 224 × 224."""

from large_job import classification_loss, image_samples, large_job
from torchvision.models import resnet50

import onecurve as oc


def job(batch: int = 2048) -> oc.Job:
    return large_job(resnet50, image_samples(), batch, classification_loss)

"""ResNet-18 of torchvision: batch norm over all ranks or over each rank alone."""

from common import classification, images, training_job
from torchvision.models import resnet18


def job(batch_norm: str = "sync"):
    return training_job(lambda: resnet18(num_classes=8), images(3, 32), classification, batch_norm=batch_norm)

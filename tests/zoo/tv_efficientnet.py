"""EfficientNet of torchvision: batch norm, squeeze-and-excitation, and dropout before the head."""

from common import classification, images, training_job
from torchvision.models.efficientnet import EfficientNet, MBConvConfig


def job(drop: float = 0.0):
    blocks = [
        MBConvConfig(1, 3, 1, 16, 16, 1),
        MBConvConfig(2, 3, 2, 16, 24, 2),
        MBConvConfig(2, 3, 2, 24, 32, 2),
    ]
    return training_job(
        lambda: EfficientNet(blocks, dropout=0.2, stochastic_depth_prob=drop, num_classes=8, last_channel=64),
        images(3, 32),
        classification,
    )

"""MobileNetV3 of torchvision: depthwise convolutions, squeeze-and-excitation and batch norm."""

from common import classification, images, training_job
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3


def build():
    blocks = [
        InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
        InvertedResidualConfig(16, 3, 32, 24, False, "RE", 2, 1, 1.0),
        InvertedResidualConfig(24, 5, 48, 24, True, "HS", 1, 1, 1.0),
    ]
    return MobileNetV3(blocks, last_channel=64, num_classes=8)


def job():
    return training_job(build, images(3, 32), classification)

"""ConvNeXt of torchvision: depthwise convolutions, and residual branches dropped at random on request."""

from common import classification, images, training_job
from torchvision.models.convnext import CNBlockConfig, ConvNeXt


def job(drop: float = 0.0):
    blocks = [CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 2)]
    return training_job(
        lambda: ConvNeXt(blocks, num_classes=8, stochastic_depth_prob=drop), images(3, 32), classification
    )

"""Swin transformer of torchvision: attention in shifted windows with relative-position biases."""

from common import classification, images, training_job
from torchvision.models import SwinTransformer


def job(drop: float = 0.0):
    sizes = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
    return training_job(
        lambda: SwinTransformer(**sizes, stochastic_depth_prob=drop, num_classes=8), images(3, 32), classification
    )

"""VGG-11 of torchvision as a plain nn.Sequential: convolutions without batch norm."""

from common import classification, images, training_job
from torch import nn
from torchvision.models.vgg import make_layers


def build():
    # VGG-11 with an eighth of the channels: torchvision's own classifier has 120 million parameters at any width.
    widths = [8, "M", 16, "M", 32, 32, "M", 64, 64, "M", 64, 64, "M"]
    return nn.Sequential(
        make_layers(widths),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(32, 8),
    )


def job():
    return training_job(build, images(3, 32), classification)

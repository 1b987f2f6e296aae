"""DenseNet of torchvision: every layer gets the outputs of all layers before it."""

from common import classification, images, training_job
from torchvision.models import DenseNet


def job():
    sizes = {"growth_rate": 8, "block_config": (2, 2), "num_init_features": 16, "bn_size": 2}
    return training_job(lambda: DenseNet(**sizes, num_classes=8), images(3, 32), classification)

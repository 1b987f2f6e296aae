"""ConvNeXt V2: depthwise convolutions and global response normalization."""

from common import classification, images, training_job
from transformers import ConvNextV2Config, ConvNextV2ForImageClassification


def job(drop: float = 0.0):
    config = {
        "num_stages": 2,
        "hidden_sizes": [16, 32],
        "depths": [2, 2],
        "drop_path_rate": drop,
        "image_size": 32,
        "num_labels": 8,
    }
    return training_job(
        lambda: ConvNextV2ForImageClassification(ConvNextV2Config(**config)), images(3, 32), classification
    )

"""DINOv2: a vision transformer with layer scale and interpolated positions."""

from common import classification, images, training_job
from transformers import Dinov2Config, Dinov2ForImageClassification


def job():
    config = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "mlp_ratio": 2,
        "image_size": 16,
        "patch_size": 4,
        "num_labels": 8,
    }
    return training_job(lambda: Dinov2ForImageClassification(Dinov2Config(**config)), images(3, 16), classification)

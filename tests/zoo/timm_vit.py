"""timm models: a vision transformer, EVA-02, MLP-Mixer, RegNet, or any other by its timm name."""

import timm
from common import classification, images, training_job
from timm.models.mlp_mixer import MlpMixer

TRANSFORMER = {"embed_dim": 32, "depth": 2, "num_heads": 4}
BUILD = {
    "vit": lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=8, **TRANSFORMER),
    "eva": lambda: timm.create_model("eva02_tiny_patch14_224", img_size=28, patch_size=7, num_classes=8, **TRANSFORMER),
    # Built from its class, because timm's mixer functions set the width themselves.
    "mixer": lambda: MlpMixer(img_size=64, patch_size=32, embed_dim=32, num_blocks=2, num_classes=8),
    "regnet": lambda: timm.create_model("regnetx_002", num_classes=8),
}
IMAGE_SIZES = {"eva": 28, "mixer": 64}


def job(name: str = "vit"):
    build = BUILD.get(name, lambda: timm.create_model(name, num_classes=8))
    return training_job(build, images(3, IMAGE_SIZES.get(name, 32)), classification)

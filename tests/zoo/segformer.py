"""SegFormer: semantic segmentation with cross entropy per pixel and a batch norm in the head."""

import torch
from common import training_job
from transformers import SegformerConfig, SegformerForSemanticSegmentation


def sample(_index):
    return {"pixel_values": torch.randn(3, 32, 32), "labels": torch.randint(4, (32, 32))}, 0


def job(drop: float = 0.0):
    config = {
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "sr_ratios": [2, 1],
        "hidden_sizes": [16, 32],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [2, 4],
        "mlp_ratios": [2, 2],
        "decoder_hidden_size": 32,
        "drop_path_rate": drop,
        "num_labels": 4,
    }
    return training_job(lambda: SegformerForSemanticSegmentation(SegformerConfig(**config)), sample)

"""Whisper large: an encoder of 30 seconds of sound and a decoder of text."""

import torch
from large_job import RandomSamples, large_job
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

import onecurve as oc


def sample() -> tuple[dict[str, Tensor], int]:
    return {"input_features": torch.randn(128, 3000), "labels": torch.randint(3, 51_000, (448,))}, 0


def job(batch: int = 256) -> oc.Job:
    config = WhisperConfig(
        vocab_size=51_866,
        num_mel_bins=128,
        d_model=1280,
        encoder_layers=32,
        decoder_layers=32,
        encoder_attention_heads=20,
        decoder_attention_heads=20,
        encoder_ffn_dim=5120,
        decoder_ffn_dim=5120,
    )
    return large_job(lambda: WhisperForConditionalGeneration(config), lambda: RandomSamples(sample), batch)

"""Whisper: a speech encoder with convolutions and a text decoder."""

import torch
from common import TOKENS, training_job
from transformers import WhisperConfig, WhisperForConditionalGeneration


def sample(_index):
    return {"input_features": torch.randn(8, 32), "labels": torch.randint(3, 64, (8,))}, 0


def build():
    config = WhisperConfig(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=16,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
        **TOKENS,
    )
    return WhisperForConditionalGeneration(config)


def job():
    return training_job(build, sample)

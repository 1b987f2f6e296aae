"""Mistral 7B, with the sliding window of its configuration."""

from large_job import large_job, token_samples
from transformers import MistralConfig, MistralForCausalLM

import onecurve as oc


def job(length: int = 8192, batch: int = 128) -> oc.Job:
    return large_job(lambda: MistralForCausalLM(MistralConfig()), token_samples(32_000, length), batch)

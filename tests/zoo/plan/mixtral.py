"""Mixtral 8x7B: 8 experts, of which each token uses 2."""

from large_job import large_job, token_samples
from transformers import MixtralConfig, MixtralForCausalLM

import onecurve as oc


def job(length: int = 4096, batch: int = 256) -> oc.Job:
    return large_job(lambda: MixtralForCausalLM(MixtralConfig()), token_samples(32_000, length), batch)

"""Mixtral: a mixture of experts, with a load-balancing loss over the batch on request."""

from common import SIZES, TOKENS, training_job
from transformers import MixtralConfig, MixtralForCausalLM


def job(aux: bool = False, experts: str = "eager"):
    config = {
        **SIZES,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "output_router_logits": aux,
        "experts_implementation": experts,
    }
    return training_job(lambda: MixtralForCausalLM(MixtralConfig(**config, **TOKENS)))

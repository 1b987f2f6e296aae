"""LoRA adapters on Llama 3 8B: everything else is frozen."""

from large_job import large_job, token_samples
from llama_8b import config
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaForCausalLM

import onecurve as oc


def model() -> nn.Module:
    adapters = LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    return get_peft_model(LlamaForCausalLM(config()), adapters)


def job(length: int = 2048, batch: int = 64) -> oc.Job:
    return large_job(model, token_samples(128_256, length), batch)

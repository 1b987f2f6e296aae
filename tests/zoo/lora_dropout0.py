"""LoRA adapters without dropout in the last layer only: the first half of the model has nothing to train."""

from common import SIZES, TOKENS, training_job
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def build():
    base = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, **TOKENS))
    adapters = LoraConfig(
        r=4, lora_alpha=8, task_type="CAUSAL_LM", layers_to_transform=[1], target_modules=["q_proj", "v_proj"]
    )
    return get_peft_model(base, adapters)


def job():
    return training_job(build)

"""LoRA adapters of peft with dropout on every linear layer of a frozen Llama."""

from common import SIZES, TOKENS, training_job
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def build():
    base = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, **TOKENS))
    adapters = LoraConfig(
        r=4,
        lora_alpha=8,
        lora_dropout=0.05,
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )
    return get_peft_model(base, adapters)


def job():
    return training_job(build)

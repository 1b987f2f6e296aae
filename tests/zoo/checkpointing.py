"""Activation checkpointing with gradient_checkpointing_enable(), as in fine-tuning scripts."""

from common import SIZES, TOKENS, training_job
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


def job(reentrant: bool = False, name: str = "llama"):
    def build():
        if name == "llama":
            model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False, **TOKENS))
        else:
            model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=32, **TOKENS))
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        return model

    return training_job(build)

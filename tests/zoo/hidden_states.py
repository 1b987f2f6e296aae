"""A loss on hidden states of inner layers (distillation), which transformers collects with hooks."""

import torch
from common import SIZES, TOKENS, training_job
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


def sample(_index):
    return {"input_ids": torch.randint(3, 64, (16,))}, 0


def squares(output, _target):
    values = (output.logits.float(), output.hidden_states[1], output.hidden_states[2])
    return sum(value.pow(2).mean((1, 2)) for value in values)


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, output_hidden_states=True, **TOKENS))


def gpt2():
    config = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 32, "output_hidden_states": True}
    return GPT2LMHeadModel(GPT2Config(**config, **TOKENS))


def job(name: str = "llama"):
    return training_job(llama if name == "llama" else gpt2, sample, squares)

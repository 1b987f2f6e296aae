"""GPT-J: attention and MLP in parallel, rotary positions on a part of each head."""

from common import TOKENS, training_job
from transformers import GPTJConfig, GPTJForCausalLM


def job():
    return training_job(
        lambda: GPTJForCausalLM(GPTJConfig(n_embd=32, n_head=4, n_layer=2, rotary_dim=4, n_positions=32, **TOKENS))
    )

"""Hugging Face's own classes, built from their configuration and not changed (extra `hf`)."""

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import onecurve as oc

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Text:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        text = torch.randint(3, 64, (17,))
        return text[:-1], text[1:]


class Images:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(3, 16, 16), index % 8


def next_token(output: object, target: Tensor) -> oc.Weighted:
    loss = F.cross_entropy(output.logits.flatten(0, 1), target.flatten(), reduction="sum")
    return oc.Weighted(loss, target.numel())


def label(output: object, target: Tensor) -> Tensor:
    return F.cross_entropy(output.logits, target, reduction="none")


def llama() -> torch.nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=2))


def gpt2() -> torch.nn.Module:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **TOKENS))


def bert() -> torch.nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **TOKENS, max_position_embeddings=32))


def vit() -> torch.nn.Module:
    images = {"image_size": 16, "patch_size": 4, "num_labels": 8}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, **images))


def job(name: str = "llama") -> oc.Job:
    images = name == "vit"
    return oc.Job(
        model={"llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit}[name],
        loss=label if images else next_token,
        data=Images if images else Text,
        optimizer=oc.AdamW(lr=1e-3),
        clip=1.0,
        global_batch=16,
        steps=10,
    )

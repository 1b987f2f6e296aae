"""A fine-tuning job as a user would write it: pretrained weights from a Hugging Face folder, and their own text."""

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import onecurve as oc


class Sequences:
    """Arithmetic sequences of token ids, modulo the vocabulary size."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        tokens = (torch.arange(17) * (1 + index % 5) + index) % 64
        return {"input_ids": tokens[:-1]}, tokens[1:]


def loss(output, target: Tensor) -> Tensor:
    logits = output.logits.float().flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, target.flatten(), reduction="none").view(target.shape).mean(1)


def job(folder: str, steps: int = 6, every: int = 3) -> oc.Job:
    return oc.Job(
        model=lambda: AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)),
        weights=folder,
        loss=loss,
        data=lambda: Sequences(64),
        optimizer=oc.AdamW(lr=1e-3),
        global_batch=8,
        steps=steps,
        evaluate=oc.Evaluate(lambda: Sequences(16), every=3),
        save=oc.Save(every=every),
    )

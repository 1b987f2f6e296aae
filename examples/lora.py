"""Fine-tunes a Hugging Face folder with LoRA: `onecurve run examples/lora.py folder=PATH --plan "shard2 mb8"`.

Without a folder, a small Llama with random weights is written to a folder for temporary files first. Needs the packages
transformers and peft.
"""

import sysconfig
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import onecurve as oc


def small_llama() -> Path:
    """A folder with a model that reads bytes."""
    folder = Path(tempfile.gettempdir(), "onecurve-small-llama")
    if not (folder / "model.safetensors").exists():
        config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)  # fmt: skip
        with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
            torch.manual_seed(0)
            LlamaForCausalLM(config).save_pretrained(staging)
            folder.mkdir(exist_ok=True)
            for file in sorted(Path(staging).iterdir()):  # the configuration first
                file.replace(folder / file.name)
    return folder


def adapted(folder: Path, rank: int) -> PeftModel:
    """The model with adapters; its own weights are loaded later, each rank reads what it needs of them."""
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))  # type: ignore[no-untyped-call]
    return get_peft_model(base, adapters)


class Text:
    """Parts of the source code of Python's standard library, as bytes; 500 of them are for evaluation."""

    def __init__(self, context: int, train: bool) -> None:
        paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        chosen = paths[:-3] if train else paths[-3:]
        self.text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in chosen)), dtype=torch.uint8)
        self.context = context
        self.size = len(self.text) // context if train else 500

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:
        tokens = self.text[index * self.context : (index + 1) * self.context].long()
        return {"input_ids": tokens, "labels": tokens}, 0


def job(
    folder: str = "", rank: int = 8, lr: float = 1e-2, context: int = 64, batch: int = 16, steps: int = 200
) -> oc.Job:
    path = Path(folder) if folder else small_llama()
    return oc.Job(
        model=lambda: adapted(path, rank),
        weights=path,
        loss=oc.loss.hugging_face,
        data=lambda: Text(context, train=True),
        optimizer=oc.AdamW(lr=lr),
        schedule=oc.cosine(warmup=10),
        clip=1.0,
        global_batch=batch,
        steps=steps,
        evaluate=oc.Evaluate(lambda: Text(context, train=False), every=100),
    )

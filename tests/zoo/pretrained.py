"""Pretrained weights: from_pretrained in the constructor as in fine-tuning scripts, or Job(weights=folder)."""

import shutil
import tempfile
from pathlib import Path

import torch
from common import SIZES, TOKENS, training_job
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

FOLDER = Path(tempfile.gettempdir()) / "onecurve-zoo-tiny-llama"


def build():
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, **TOKENS))


def create_folder():
    """Save the pretrained model once. The folder appears complete, by a rename, because several ranks may do this."""
    if FOLDER.exists():
        return
    partial = Path(tempfile.mkdtemp(prefix=f"{FOLDER.name}-", dir=FOLDER.parent))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        build().save_pretrained(partial)
    try:
        partial.rename(FOLDER)
    except OSError:  # another process was faster
        shutil.rmtree(partial)


def load_state():
    model = build()
    model.load_state_dict(load_file(FOLDER / "model.safetensors"), strict=False)
    return model


def job(how: str = "from_pretrained", dtype: str = "float32"):
    create_folder()
    if how == "from_pretrained":
        return training_job(lambda: AutoModelForCausalLM.from_pretrained(FOLDER, dtype=getattr(torch, dtype)))
    if how == "from_config":
        return training_job(
            lambda: AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(FOLDER)), weights=FOLDER
        )
    if how == "load_state_dict":
        return training_job(load_state)
    return training_job(build, weights=FOLDER)

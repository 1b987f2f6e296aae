"""What makes a folder of weights one that Hugging Face's `from_pretrained` reads: configuration and tokenizer."""

import shutil
from pathlib import Path
from typing import Any

_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_NOT = ("config.json", "model.safetensors.index.json")
_LARGEST = 1 << 28


def keep_configuration(model: Any, weights: str | Path | None, folder: Path) -> None:
    """Of a model that has one, so that an export needs neither the script nor the folder it began with."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "save_pretrained"):
        return
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    if weights is not None and Path(weights).is_dir():
        for pattern in _BESIDE:
            for file in Path(weights).glob(pattern):
                if file.is_file() and file.name not in _NOT and file.stat().st_size <= _LARGEST:
                    shutil.copyfile(file, folder / file.name)

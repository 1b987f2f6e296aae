"""Folders that Hugging Face's `from_pretrained` reads: the configuration and tokenizer besides the weights."""

import copy
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onecurve.checkpoint.export import INDEX, LazyTensor, write_many, write_one
from onecurve.describe.errors import OnecurveError

_COPIED_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_NOT_COPIED = ("config.json", "model.safetensors.index.json")
_MAX_FILE_BYTES = 1 << 28
_ADAPTERS, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ADAPTER_NAME = "adapter_name.txt"


def save_configuration(model: Any, weights: str | Path | None, folder: Path, *, adapters: bool) -> None:
    """Save the model's `config` and the small files in the folder `weights`, such as its tokenizer, to `folder`.

    A later export then needs neither the training script nor the folder of the pretrained weights. Models without a
    Hugging Face configuration are left alone. `adapters`: the model is one of peft, of which only adapters are saved.
    """
    if adapters:
        _save_adapters(model, weights, folder)
        return
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "save_pretrained"):
        return
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    if weights is not None and Path(weights).is_dir():
        for pattern in _COPIED_PATTERNS:
            for file in Path(weights).glob(pattern):
                if file.is_file() and file.name not in _NOT_COPIED and file.stat().st_size <= _MAX_FILE_BYTES:
                    shutil.copyfile(file, folder / file.name)


def write_folder(tensors: Mapping[str, LazyTensor], configuration: Path, path: Path) -> None:
    """Write the weights to the folder `path`, together with what `save_configuration` saved in `configuration`."""
    if (configuration / _ADAPTERS).is_file():
        _write_adapters(tensors, configuration, path)
        return
    if not (configuration / "config.json").is_file():
        raise OnecurveError(
            f"{configuration}: no config.json, so the model is not one of transformers'; use --to safetensors"
        )
    path.mkdir(parents=True, exist_ok=True)
    for stale in (*path.glob("model*.safetensors"), path / INDEX):
        stale.unlink(missing_ok=True)
    for file in configuration.iterdir():
        if file.is_file() and not file.is_symlink():
            shutil.copyfile(file, path / file.name)
    write_many(tensors, path)


def _save_adapters(model: Any, weights: str | Path | None, folder: Path) -> None:
    """Save the configuration of a model's adapters, with the folder of its base."""
    name = model.active_adapter
    config = copy.copy(model.peft_config[name])
    if weights is not None and not config.base_model_name_or_path:
        config.base_model_name_or_path = str(weights)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    (folder / _ADAPTER_NAME).write_text(name)


def _write_adapters(tensors: Mapping[str, LazyTensor], configuration: Path, path: Path) -> None:
    """Write adapters under the names that peft's `from_pretrained` expects: without the adapter's own."""
    adapter = re.escape((configuration / _ADAPTER_NAME).read_text())
    own = re.compile(rf"(?:\.modules_to_save)?\.{adapter}(?=\.|$)")
    path.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(configuration / _ADAPTERS, path / _ADAPTERS)
    write_one({own.sub("", name): lazy for name, lazy in tensors.items() if own.search(name)}, path / _ADAPTER_WEIGHTS)

"""Weights that a constructor reads from files are exactly the file's, and are read only when they are needed."""

import shutil
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from onecurve.model.deferred import DeferredModel, defer_init
from onecurve.model.recorder import build_real


def values(deferred: DeferredModel) -> dict[str, Tensor]:
    assert deferred.recorder is not None, deferred.warning
    parameters = dict(deferred.module.named_parameters())
    assert all(isinstance(parameter, FakeTensor) for parameter in parameters.values())
    return {name: deferred.recorder.value(parameter) for name, parameter in parameters.items()}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


def linear_with(state: dict[str, Tensor]) -> nn.Module:
    module = nn.Linear(3, 2)
    module.load_state_dict(state)
    return module


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "legacy.pt"])
def test_a_state_dict_is_that_of_the_file(tmp_path: Path, suffix: str) -> None:
    stored, file = nn.Linear(3, 2).state_dict(), tmp_path / f"weights.{suffix}"
    if suffix == "safetensors":
        save_file(stored, file)
    else:
        torch.save(stored, file, _use_new_zipfile_serialization=suffix == "pt")
    load = load_file if suffix == "safetensors" else lambda file: torch.load(file)
    assert_same(values(defer_init(lambda: linear_with(load(file)), seed=1)), stored)


def test_loaded_weights_can_be_sliced_converted_and_changed(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"weight": torch.randn(4, 3), "bias": torch.randn(2)}, file)

    def build() -> nn.Module:
        with safetensors.safe_open(file, "pt") as opened:
            assert opened.get_slice("weight").get_shape() == [4, 3]
            module = linear_with({"weight": opened.get_slice("weight")[1:3], "bias": opened.get_tensor("bias")})
        with torch.no_grad():
            module.weight.mul_(2)
        return module.to(torch.bfloat16)

    deferred = defer_init(build, seed=1)
    expected = {name: parameter.detach() for name, parameter in build_real(build, 1).named_parameters()}
    assert_same(values(deferred), expected)
    assert_same(values(deferred), expected)  # the first replay did not change what was loaded


def test_a_file_may_be_deleted_after_the_constructor(tmp_path: Path) -> None:
    stored, file = nn.Linear(3, 2).state_dict(), tmp_path / "weights.safetensors"

    def build() -> nn.Module:
        save_file_outside_the_recording(stored, file)
        module = linear_with(load_file(file))
        file.unlink()
        return module

    assert_same(values(defer_init(build, seed=1)), stored)


def save_file_outside_the_recording(stored: dict[str, Tensor], file: Path) -> None:
    with torch.utils._python_dispatch._disable_current_modes():
        save_file(stored, file)


def test_files_are_read_as_usual_after_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(2)}, file)
    with pytest.raises(Exception, match="Missing key"):
        defer_init(lambda: linear_with(load_file(file)), seed=1)
    assert torch.equal(load_file(file)["weight"], torch.ones(2))
    assert safetensors.safe_open is safetensors.torch.safe_open


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_pretrained_is_recorded(tmp_path: Path, dtype: torch.dtype) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=16
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")

    def build() -> nn.Module:
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)

    expected = {name: tensor.clone() for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items()}
    deferred = defer_init(build, seed=1)
    buffers = {name: buffer.clone() for name, buffer in build_real(build, 1).named_buffers()}
    shutil.rmtree(tmp_path / "model")
    assert_same(values(deferred), {name: tensor.to(dtype) for name, tensor in expected.items()})
    assert deferred.recorder is not None
    for name, buffer in deferred.module.named_buffers():
        assert torch.equal(deferred.recorder.value(buffer), buffers[name]), name

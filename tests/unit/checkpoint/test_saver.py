"""Saves in the background: what is written, and how failures are reported."""

import errno
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sample_checkpoints as samples
from onecurve.checkpoint.export import lazy_tensors_of, write_many
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import SavePoint
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import Saver
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.device.local_tensor import local_tensor_of
from onecurve.train.update import OptimizerUpdate


class ControlledStore(LocalStore):
    """Delays writes until `released` is set, and makes them fail while `fails` is true."""

    fails = False
    released: threading.Event | None = None

    def write(self, name, file, parts) -> None:
        if self.released is not None:
            self.released.wait()
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, file, parts)


def make_saver(store: LocalStore, last: int = 2) -> Saver:
    return Saver(store, None, local_device(0), Plan(), {}, Retention(last))


def test_a_failure_is_reported_and_the_next_save_succeeds(tmp_path: Path) -> None:
    store = ControlledStore(tmp_path)
    tensors = samples.local_tensors(Mesh(), 0, seed=1)
    saver = make_saver(store)
    saver.save(tensors, samples.optimizer_state(tensors), SavePoint(1))
    saver.wait()
    store.fails = True
    saver.save(tensors, samples.optimizer_state(tensors), SavePoint(2))
    saver.wait()
    events = saver.take_events()
    assert [event.event for event in events] == ["saved", "warning"]
    assert "step 2 was not saved" in events[1].text
    assert "No space left on device; earlier checkpoints are unchanged" in events[1].text
    store.fails = False
    saver.save(tensors, samples.optimizer_state(tensors), SavePoint(3))
    saver.wait()
    assert [Checkpoint(store, name).root.point.step for name in store.names()] == [1, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == store.names()  # no incomplete checkpoint is left


def test_training_may_change_tensors_while_they_are_saved(tmp_path: Path) -> None:
    store = ControlledStore(tmp_path)
    store.released = threading.Event()
    tensors = samples.local_tensors(Mesh(), 0, seed=1)
    saver = make_saver(store)
    saver.save(tensors, samples.optimizer_state(tensors), SavePoint(1))
    with torch.no_grad():
        for tensor in tensors:
            tensor.local.fill_(torch.nan)
    store.released.set()
    saver.wait()
    samples.load(store, store.names()[0], Mesh())


def test_old_checkpoints_are_removed_after_a_save(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    samples.save(store, Mesh(shard=4), step=1)
    tensors = samples.local_tensors(Mesh(), 0, seed=1)
    saver = make_saver(store, last=1)
    saver.save(tensors, samples.optimizer_state(tensors), SavePoint(2))
    saver.wait()
    assert [Checkpoint(store, name).root.point.step for name in store.names()] == [2]
    assert len(list(tmp_path.iterdir())) == 1


class Convolution(nn.Module):
    """Parameters that are not contiguous in row-major order."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(3, 5).t())


def make_update(kind: type[torch.optim.Optimizer], model: type[nn.Module], seed: int) -> OptimizerUpdate:
    torch.manual_seed(seed)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {"fused": True} if kind is torch.optim.AdamW else {}
    local_tensors = [local_tensor_of(name, p, True) for name, p in model().named_parameters()]
    return OptimizerUpdate(
        lambda named_parameters: kind([p for _, p in named_parameters], lr=0.1, **options),
        local_tensors,
        None,
        local_device(0),
        Plan(),
    )


def step(update: OptimizerUpdate, number: int) -> None:
    torch.manual_seed(number)
    for local_tensor in update.local_tensors:
        local_tensor.local.grad = torch.randn_like(local_tensor.local)
    update.optimizer.step()


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))


@pytest.mark.parametrize("model", [two_layers, Convolution])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam, torch.optim.Adafactor])
def test_resumed_optimizers_take_identical_steps(kind, model, tmp_path: Path) -> None:
    """State tensors of the parameter's shape, of zero dimensions, and of other shapes (Adafactor)."""
    first, second = make_update(kind, model, 0), make_update(kind, model, 1)
    for number in range(3):
        step(first, number)
    store = LocalStore(tmp_path)
    saver = make_saver(store)
    saver.save(first.local_tensors, first.state(), SavePoint(3))
    saver.wait()
    assert [event.event for event in saver.take_events()] == ["saved"]
    second.load_state(Checkpoint(store, store.names()[0]).load(second.local_tensors, Mesh(), 0))
    step(first, 3)
    step(second, 3)
    for a, b in zip(first.local_tensors, second.local_tensors, strict=True):
        assert torch.equal(a.local, b.local)


def test_replaced_parameter_storage_is_saved(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    tensors = samples.local_tensors(Mesh(), 0, seed=1)
    saver = make_saver(store)
    for number in (1, 2):
        for tensor in tensors:
            tensor.local.data = samples.value(tensor.name, number)
        saver.save(tensors, {}, SavePoint(number))
        saver.wait()
    for number, name in zip((1, 2), store.names(), strict=True):
        loaded, _ = samples.read(store, name, Mesh())
        assert all(torch.equal(tensor.local, samples.value(tensor.name, number)) for tensor in loaded)


def test_failures_before_the_copy_are_reported_too(tmp_path: Path, monkeypatch) -> None:
    tensors = samples.local_tensors(Mesh(), 0, seed=1)
    saver = make_saver(LocalStore(tmp_path))

    def fail(*_: object) -> None:
        raise MemoryError("cannot pin memory")

    with monkeypatch.context() as patched:
        patched.setattr("onecurve.checkpoint.saver.Snapshot.take", fail)
        saver.save(tensors, samples.optimizer_state(tensors), SavePoint(1))
        saver.wait()
    saver.save(tensors, {tensors[0].name: {"key": [1, 2]}}, SavePoint(2))
    saver.wait()
    saver.save(tensors, {tensors[0].name: {"rate": np.float64(0.5)}}, SavePoint(3))
    saver.wait()
    assert [event.event for event in saver.take_events()] == ["warning", "warning", "saved"]
    _, states = samples.read(LocalStore(tmp_path), LocalStore(tmp_path).names()[-1], Mesh())
    assert states[tensors[0].name]["rate"] == 0.5


def test_an_export_is_read_by_the_safetensors_library(tmp_path: Path, monkeypatch) -> None:
    from safetensors.torch import load_file

    store = LocalStore(tmp_path / "checkpoints")
    checkpoint = Checkpoint(store, samples.save(store, Mesh(replicate=2, shard=3)))
    monkeypatch.setattr("onecurve.checkpoint.export._split_by_size.__defaults__", (100,))
    write_many(lazy_tensors_of(checkpoint), tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    exported = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert {name: tuple(tensor.shape) for name, tensor in exported.items()} == samples.SHAPES
    assert all(torch.equal(tensor, samples.value(name, 1)) for name, tensor in exported.items())

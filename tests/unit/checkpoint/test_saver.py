"""Saves in the background: what is written, what fails, what is told."""

import errno
import threading
from pathlib import Path

import numpy as np
import pytest
import samples
import torch
from torch import nn

from onecurve.checkpoint.export import model_of, write_many
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import Standing
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import Saver
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.device.local_tensor import local_tensor_of
from onecurve.train.update import OptimizerUpdate


class Failing(LocalStore):
    fails = False
    let_go: threading.Event | None = None

    def write(self, name, file, parts) -> None:
        if self.let_go is not None:
            self.let_go.wait()
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, file, parts)


def saver(store: LocalStore, last: int = 2) -> Saver:
    return Saver(store, None, local_device(0), Plan(), {}, Retention(last))


def test_a_failure_is_told_and_the_next_save_is_well(tmp_path: Path) -> None:
    store = Failing(tmp_path)
    held = samples.local_tensors(Mesh(), 0, seed=1)
    work = saver(store)
    work.save(held, samples.kept(held), Standing(1, 1))
    work.wait()
    store.fails = True
    work.save(held, samples.kept(held), Standing(2, 2))
    work.wait()
    told = work.take_events()
    assert [take_events.event for take_events in told] == ["saved", "warning"]
    assert "step 2 was not saved" in told[1].text
    assert "No space left on device; earlier checkpoints stay" in told[1].text
    store.fails = False
    work.save(held, samples.kept(held), Standing(3, 3))
    work.wait()
    assert [Checkpoint(store, name).root.standing.step for name in store.names()] == [1, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == store.names()  # nothing half-made is left


def test_training_may_change_what_is_being_saved(tmp_path: Path) -> None:
    store = Failing(tmp_path)
    store.let_go = threading.Event()
    held = samples.local_tensors(Mesh(), 0, seed=1)
    work = saver(store)
    work.save(held, samples.kept(held), Standing(1, 1))
    with torch.no_grad():
        for local_tensor in held:
            local_tensor.local.fill_(torch.nan)
    store.let_go.set()
    work.wait()
    samples.load(store, store.names()[0], Mesh())


def test_old_ones_go_when_a_new_one_exists(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    samples.save(store, Mesh(shard=4), step=1)
    held = samples.local_tensors(Mesh(), 0, seed=1)
    work = saver(store, last=1)
    work.save(held, samples.kept(held), Standing(2, 2))
    work.wait()
    assert [Checkpoint(store, name).root.standing.step for name in store.names()] == [2]
    assert len(list(tmp_path.iterdir())) == 1


class Convolution(nn.Module):
    """Laid out in memory otherwise than in rows."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(3, 5).t())


def begin(kind: type[torch.optim.Optimizer], model: type[nn.Module], seed: int) -> OptimizerUpdate:
    torch.manual_seed(seed)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {"fused": True} if kind is torch.optim.AdamW else {}
    local_tensors = [local_tensor_of(name, p, True) for name, p in model().named_parameters()]
    return OptimizerUpdate(
        lambda named: kind([p for _, p in named], lr=0.1, **options), local_tensors, None, local_device(0), Plan()
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
def test_optimizers_go_on_as_if_nothing_had_been(kind, model, tmp_path: Path) -> None:
    """States of all shapes: like the parameter, of one element, of none of both (Adafactor)."""
    first, second = begin(kind, model, 0), begin(kind, model, 1)
    for number in range(3):
        step(first, number)
    store = LocalStore(tmp_path)
    work = saver(store)
    work.save(first.local_tensors, first.state(), Standing(3, 3))
    work.wait()
    assert [take_events.event for take_events in work.take_events()] == ["saved"]
    second.load_state(Checkpoint(store, store.names()[0]).load(second.local_tensors, Mesh(), 0))
    step(first, 3)
    step(second, 3)
    for a, b in zip(first.local_tensors, second.local_tensors, strict=True):
        assert torch.equal(a.local, b.local)


def test_memory_that_an_optimizer_puts_in_place_is_seen(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    held = samples.local_tensors(Mesh(), 0, seed=1)
    work = saver(store)
    for number in (1, 2):
        for local_tensor in held:
            local_tensor.local.data = samples.value(local_tensor.name, number)
        work.save(held, {}, Standing(number, number))
        work.wait()
    for number, name in zip((1, 2), store.names(), strict=True):
        found, _ = samples.read(store, name, Mesh())
        assert all(torch.equal(local_tensor.local, samples.value(local_tensor.name, number)) for local_tensor in found)


def test_what_fails_before_the_copy_is_made_is_told_as_well(tmp_path: Path, monkeypatch) -> None:
    held = samples.local_tensors(Mesh(), 0, seed=1)
    work = saver(LocalStore(tmp_path))

    def fail(*_: object) -> None:
        raise MemoryError("cannot pin memory")

    with monkeypatch.context() as patched:
        patched.setattr("onecurve.checkpoint.saver.Snapshot.take", fail)
        work.save(held, samples.kept(held), Standing(1, 1))
        work.wait()
    work.save(held, {held[0].name: {"key": [1, 2]}}, Standing(2, 2))
    work.wait()
    work.save(held, {held[0].name: {"rate": np.float64(0.5)}}, Standing(3, 3))
    work.wait()
    assert [take_events.event for take_events in work.take_events()] == ["warning", "warning", "saved"]
    _, states = samples.read(LocalStore(tmp_path), LocalStore(tmp_path).names()[-1], Mesh())
    assert states[held[0].name]["rate"] == 0.5


def test_an_export_is_read_by_others(tmp_path: Path, monkeypatch) -> None:
    from safetensors.torch import load_file

    store = LocalStore(tmp_path / "checkpoints")
    checkpoint = Checkpoint(store, samples.save(store, Mesh(replicate=2, shard=3)))
    monkeypatch.setattr("onecurve.checkpoint.export._groups.__defaults__", (100,))
    write_many(model_of(checkpoint), tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == samples.SHAPES
    assert all(torch.equal(tensor, samples.value(name, 1)) for name, tensor in found.items())

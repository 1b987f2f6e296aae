"""The device itself notices what it is meant to notice."""

import itertools
import os

import pytest
import torch
from torch import nn

import fake_accelerator

DEVICE = torch.device("simulated", 0)


def ones(*shape: int) -> torch.Tensor:
    """On the device, not yet written."""
    return torch.full(shape, 1.0, device=DEVICE)


def test_work_is_done_when_something_waits_for_it(report) -> None:
    torch.accelerator.synchronize()
    before = fake_accelerator.simulator().queued_tasks()
    result = ones(3) + 1
    pinned = torch.empty(3, pin_memory=True)
    pinned.copy_(result, non_blocking=True)
    event = torch.Event(DEVICE)
    event.record()
    assert fake_accelerator.simulator().queued_tasks() == before + 3
    assert torch.isnan(pinned).all()
    event.synchronize()
    assert pinned.tolist() == [2.0, 2.0, 2.0]
    assert [wait["why"] for wait in report.of("wait")] == ["synchronize", "event"]
    assert report.of("wait")[1]["line"].startswith("accelerator/test_device.py:")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_computes_what_it_computes_on_the_host(dtype: torch.dtype) -> None:
    losses = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
        x, y = torch.randn(4, 2, 8, 8, dtype=dtype), torch.tensor([0, 1, 2, 3])
        model.to(device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert [loss.item() for loss in losses[:3]] == [loss.item() for loss in losses[3:]]


def test_dropout_depends_on_seed_and_number_of_draws() -> None:
    def draw() -> list[float]:
        return nn.functional.dropout(ones(50), 0.5).tolist()

    torch.manual_seed(3)
    state = torch.simulated.get_rng_state()
    first, second = draw(), draw()
    assert first != second
    torch.simulated.set_rng_state(state)
    assert draw() == first


def test_autocast_uses_the_lists_of_cuda() -> None:
    with torch.autocast("simulated", torch.bfloat16):
        assert (ones(2, 2) @ ones(2, 2)).dtype == torch.bfloat16
        assert ones(2, 2).bfloat16().softmax(-1).dtype == torch.float32
        assert ones(2, 2).bfloat16().norm().dtype == torch.float32


def test_a_stream_that_does_not_wait_is_unordered(report) -> None:
    other, copied = torch.Stream(DEVICE), torch.Event(DEVICE)
    with other:
        copy = ones(3)
        copied.record()
    copy + 1
    assert ["uses what stream" in found["what"] for found in report.of("unordered")] == [True]
    report.clear()
    torch.accelerator.current_stream().wait_event(copied)
    copy + 1
    assert not report.of("unordered")


def test_a_write_to_what_another_stream_reads_is_unordered(report) -> None:
    tensor, other = ones(3), torch.Stream(DEVICE)
    other.wait_stream(torch.accelerator.current_stream())
    with other:
        tensor + 1
    tensor.zero_()
    assert ["writes what stream" in found["what"] for found in report.of("unordered")] == [True]


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_that_another_stream_uses_must_be_recorded(report, recorded: bool) -> None:
    torch.accelerator.synchronize()
    tensor, other = ones(3), torch.Stream(DEVICE)
    other.wait_stream(torch.accelerator.current_stream())
    with other:
        tensor + 1
    if recorded:
        tensor.record_stream(other)
    del tensor
    torch.empty(3, device=DEVICE)
    assert ["allocated again" in found["what"] for found in report.of("unordered")] == [True] * (not recorded)


def test_knowledge_of_a_stream_is_passed_on(report) -> None:
    """A third stream that waits for the second one is ordered after the first one too."""
    streams = [torch.Stream(DEVICE) for _ in range(3)]
    with streams[0]:
        tensor = ones(3)
    for before, after in itertools.pairwise(streams):
        after.wait_stream(before)
    with streams[2]:
        tensor + 1
    assert not report.of("unordered")


def test_tensors_of_two_devices_are_not_mixed(report) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        ones(2, 2) @ torch.ones(2, 2)
    assert ones(3).add(torch.tensor(1.0)).tolist() == [2.0] * 3
    assert len(report.of("mixed")) == 1


def test_pageable_memory_makes_the_host_wait(report) -> None:
    torch.ones(3).to(DEVICE, non_blocking=True)
    torch.ones(3).pin_memory().to(DEVICE, non_blocking=True)
    assert [wait["why"] for wait in report.of("wait")] == ["copy to the device from pageable memory"]


def test_a_process_that_uses_the_device_cannot_be_forked(report) -> None:
    ones(3)
    child = os.fork()
    if not child:
        try:
            ones(3)
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert report.of("fork")[0]["devices"] == [0]


def test_memory_is_counted_and_limited() -> None:
    torch.accelerator.synchronize()
    before = torch.simulated.memory_allocated()
    tensor = torch.empty(1 << 20, device=DEVICE)
    assert torch.simulated.memory_allocated() - before == tensor.nbytes
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(1 << 40, device=DEVICE)

"""Copies ahead of the computation are ordered, and the device notices if they are not."""

import pytest
import torch
from torch import Tensor

import fake_accelerator
from onecurve.device.device import local_device
from onecurve.device.prefetch import Prefetcher


def use(items: list[Tensor]) -> list[float]:
    """Sum each item on the device, and free it."""
    device = local_device(0)
    sums = []
    ahead = Prefetcher(device).ahead(items, lambda item: item.to(device.torch_device, non_blocking=True), lambda x: x)
    for item in ahead:
        sums.append((item * 2).sum())
        del item
        torch.empty(1000, device=device.torch_device)  # may get the memory of the item
    return [total.item() for total in sums]


@pytest.fixture
def items() -> list[Tensor]:
    return [torch.full((1000,), float(n)).pin_memory() for n in range(4)]


def test_copies_are_ordered_and_do_not_wait(items, report) -> None:
    assert use(items) == [0.0, 2000.0, 4000.0, 6000.0]
    assert not report.of("unordered")
    assert {wait["why"] for wait in report.of("wait")} == {"item"}


@pytest.mark.parametrize(
    ("method", "found"), [("wait_event", "uses what stream"), ("record_stream", "allocated again")]
)
def test_what_orders_them_is_needed(items, report, monkeypatch, method: str, found: str) -> None:
    """As if the code did not call the method of the stream, or of the tensor."""
    monkeypatch.setattr(fake_accelerator.simulator(), method, lambda *_: None)
    use(items)
    assert any(found in entry["what"] for entry in report.of("unordered"))

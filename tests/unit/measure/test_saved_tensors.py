"""Bytes of activations: every storage that autograd saves counts once, and the model's own tensors do not count."""

import torch
from torch import Tensor, nn

from onecurve.measure.saved_tensors import SavedTensors


def saved_in(model: nn.Module, forward: object) -> SavedTensors:
    saved = SavedTensors(model)
    with saved.hooks():
        forward()  # type: ignore[operator]
    return saved


def test_the_input_of_a_linear_layer_is_saved_and_its_weight_is_not_counted() -> None:
    model, x = nn.Linear(4, 8), torch.randn(3, 4)
    saved = saved_in(model, lambda: model(x))
    assert saved.nbytes == x.nbytes
    assert saved.has(x)
    assert not saved.has(model.weight)


def test_a_storage_counts_once_however_many_views_are_saved() -> None:
    model, x = nn.Linear(4, 8), torch.randn(3, 4)
    saved = saved_in(model, lambda: (model(x), model(x[1:]), model(x.view(3, 2, 2).flatten(1))))
    assert saved.nbytes == x.nbytes
    assert saved.has(x[2:])


def test_buffers_of_the_model_are_not_counted() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("scale", torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    model, x = Scaled(), torch.randn(3, 4)
    assert saved_in(model, lambda: model(x)).nbytes == x.nbytes  # of the product only the buffer is needed


def test_without_gradients_nothing_is_saved() -> None:
    model, x = nn.Linear(4, 8), torch.randn(3, 4)
    with torch.no_grad():
        assert saved_in(model, lambda: model(x)).nbytes == 0


def test_the_hooks_do_not_change_the_gradients() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(3, 4)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    with SavedTensors(model).hooks():
        loss = model(x).sum()
    actual = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_tensors_that_other_modules_saved_too_can_be_discarded() -> None:
    model, shared, own = nn.Linear(2, 2), torch.randn(8), torch.randn(4)
    first, second = SavedTensors(model), SavedTensors(model)
    for tensor in (shared, own):
        first.add(tensor)
    second.add(shared)
    first.discard(second)
    assert first.nbytes == own.nbytes
    assert second.nbytes == shared.nbytes


def test_a_blocks_output_counts_as_the_next_blocks_input() -> None:
    model, block_input, output, inner = nn.Linear(2, 2), torch.randn(8), torch.randn(8), torch.randn(2)
    saved = SavedTensors(model)
    for tensor in (block_input, output, inner):
        saved.add(tensor)
    saved.discard_chained_outputs(block_input, [output])
    assert saved.nbytes == block_input.nbytes + inner.nbytes
    without_input = SavedTensors(model)
    without_input.add(output)
    without_input.discard_chained_outputs(block_input, [output])
    assert without_input.nbytes == output.nbytes

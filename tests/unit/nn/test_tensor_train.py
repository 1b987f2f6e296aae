"""Layers whose weights are tensor trains compute what their full matrices compute."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import onecurve as oc
from onecurve.describe.errors import OnecurveError
from onecurve.nn.tensor_train import (
    digits,
    full_matrix,
    is_cheaper_in_full,
    padded_digits,
    times_train,
    train_rows,
    train_shape,
)


@given(st.integers(1, 5000), st.integers(2, 4))
def test_digits_multiply_to_the_size(size: int, count: int) -> None:
    assert math.prod(digits(size, count)) == size
    assert size <= math.prod(padded_digits(size, count))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(2, 4))
def test_a_layer_is_its_matrix(rows: int, columns: int, rank: int, cores: int) -> None:
    torch.manual_seed(0)
    linear = oc.nn.TTLinear(rows, columns, rank, cores=cores).double()
    x = torch.randn(2, 3, rows, dtype=torch.float64)
    torch.testing.assert_close(linear(x), nn.functional.linear(x, linear.full_weight(), linear.bias))
    values = [core.detach() for core in linear.cores]
    full = full_matrix(linear.train_shape, values)
    torch.testing.assert_close(times_train(x.flatten(0, 1), linear.train_shape, values), x.flatten(0, 1) @ full)
    torch.testing.assert_close(train_rows(torch.arange(rows), linear.train_shape, values), full)
    embedding = oc.nn.TTEmbedding(rows, columns, rank, cores=cores).double()
    indices = torch.randint(rows, (4, 2))
    torch.testing.assert_close(embedding(indices), embedding.full_weight()[indices])


@pytest.mark.parametrize("layer", [oc.nn.TTLinear(256, 512, rank=8), oc.nn.TTEmbedding(500, 64, rank=8, cores=3)])
def test_initial_weights_vary_as_those_of_torch(layer: nn.Module) -> None:
    expected = 1 / (3 * 256) if isinstance(layer, oc.nn.TTLinear) else 1.0
    assert layer.full_weight().var().item() == pytest.approx(expected, rel=0.35)
    assert sum(p.numel() for p in layer.parameters()) < layer.full_weight().numel() / 5


def test_compression_is_exact_with_full_rank_and_reports_its_error_otherwise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 12), nn.Linear(12, 20), nn.Linear(20, 6))
    indices = torch.arange(11)
    before = model(indices)
    weight = model[1].weight.detach().clone()
    exact = oc.nn.compress(model, "0|1", rank=1000)
    assert [layer.name for layer in exact] == ["0", "1"]
    assert all(layer.error < 1e-5 for layer in exact)
    torch.testing.assert_close(model(indices), before, rtol=1e-4, atol=1e-5)
    rough = nn.Sequential(nn.Linear(12, 20))
    rough[0].weight.data = weight
    (layer,) = oc.nn.compress(rough, "*", rank=2)
    expected = (rough[0].full_weight() - weight).norm() / weight.norm()
    assert layer.error == pytest.approx(expected.item(), rel=1e-5)
    assert 0.1 < layer.error < 1
    assert layer.after < layer.before


def test_what_cannot_be_compressed_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(OnecurveError, match="matches no nn"):
        oc.nn.compress(model, "mlp*", rank=2)
    model[1].weight = model[0].weight
    with pytest.raises(OnecurveError, match=r"0.weight is the same tensor as 1.weight"):
        oc.nn.compress(model, "0", rank=2)
    with pytest.raises(OnecurveError, match="cores at least 2"):
        oc.nn.TTLinear(4, 4, rank=2, cores=1)


def test_few_rows_are_contracted_and_many_use_the_matrix() -> None:
    shape = train_shape(128, 512, 16, 2, "")
    assert not is_cheaper_in_full(shape, 1)
    assert is_cheaper_in_full(shape, 2048)

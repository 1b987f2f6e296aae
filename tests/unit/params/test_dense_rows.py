"""Parameters as rows: the same values come back, and servers update them as torch does."""

from typing import Any

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.describe.errors import OnecurveError
from onecurve.describe.slots import SLOTS
from onecurve.job.row_optimizer import TorchOptimizer
from onecurve.params.dense_rows import DenseRows, digest
from onecurve.params.row_store import RowStore

OPTIMIZERS = {
    "adamw": oc.AdamW(lr=0.1, weight_decay=0.2, groups={"*.bias": {"weight_decay": 0.0}}),
    "adam": oc.Optimizer(torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1}),
    "decoupled": oc.Optimizer(torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "sgd": oc.SGD(lr=0.1),
    "momentum": oc.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
}


def new_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 50), nn.Linear(50, 3), nn.BatchNorm1d(3)).double()
    model[1].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_update_parameters_as_torch_does(name: str) -> None:
    model, factory = new_model(), OPTIMIZERS[name]
    dense = DenseRows(model, factory, torch.float64)
    trained = {each: parameter for each, parameter in model.named_parameters() if parameter.requires_grad}
    stores = {table: RowStore(each, 0, torch.float64) for table, each in dense.tables.items()}
    for table, (ids, rows) in dense.lines({**dict(model.named_parameters()), **dict(model.named_buffers())}).items():
        states = torch.zeros(len(ids), stores[table].widths[1][0], dtype=torch.float64)
        stores[table].put(ids, rows, states, 1)
    optimizer = factory(trained.items())
    for step in range(1, 6):
        for number, parameter in enumerate(trained.values()):
            # torch counts the updates of each parameter. Its fused SGD fails if momentum begins later for some.
            is_used = number != 1 or step not in (1, 3) or name == "momentum"
            parameter.grad = torch.randn_like(parameter) if is_used else None
        for table, (ids, lines) in dense.lines({each: p.grad for each, p in trained.items()}).items():
            stores[table].update(ids, lines, stores[table].table.optimizer.lr, step)
        optimizer.step()
    other = new_model()
    rows = {table: stores[table].get(ids) for table, ids in dense.ids(constant=True).items()}
    dense.write(rows, {**dict(other.named_parameters()), **dict(other.named_buffers())})
    for each, parameter in model.named_parameters():
        torch.testing.assert_close(other.get_parameter(each), parameter, rtol=1e-12, atol=1e-14)


def test_states_are_read_with_their_parameters() -> None:
    model = nn.Linear(3, 2).double()
    dense = DenseRows(model, oc.AdamW(), torch.float64)
    tensors = dict(model.named_parameters())
    states = {
        name: {"exp_avg": torch.full_like(each, 5.0), "step": torch.tensor(3.0)} for name, each in tensors.items()
    }
    ((table, ids, rows, found),) = dense.reader(tensors, states)([], range(SLOTS))
    assert table == "dense.0"
    assert ids.tolist() == [0, 1]
    assert torch.equal(rows[0, :6], model.weight.detach().flatten())
    assert found[0, :6].tolist() == [5.0] * 6  # the first moment
    assert found[0, 256:512].abs().sum() == 0  # the second one, which it has not
    assert found[:, 512].tolist() == [3.0, 3.0]


def test_what_is_not_trained_is_sent_too() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model.register_buffer("numbers", torch.arange(3))
    model.register_buffer("precise", torch.ones(2, dtype=torch.float64))
    dense = DenseRows(model, lambda named: torch.optim.SGD([p for _, p in named], lr=0.1), torch.float32)
    assert sum(len(ids) for ids in dense.ids(constant=False).values()) == 2
    assert sum(len(ids) for ids in dense.ids(constant=True).values()) == 4
    assert dense.unsent == ["numbers", "precise"]
    before = digest(dict(model.named_buffers()))
    model.numbers[1] = 7
    assert digest(dict(model.named_buffers())) != before


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (oc.LAMB(), "LAMB cannot update parameters on servers"),
        (oc.Optimizer(torch.optim.Adam, {"amsgrad": True}), "Adam with amsgrad cannot"),
        (oc.Optimizer(torch.optim.SGD, {"lr": 1.0, "momentum": 0.9, "dampening": 0.1}), "SGD with dampening cannot"),
    ],
)
def test_other_optimizers_are_refused(factory: Any, expected: str) -> None:
    with pytest.raises(OnecurveError, match=expected):
        DenseRows(nn.Linear(3, 2), factory, torch.float32)


def test_settings_come_from_the_parameter_group() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.5, betas=(0.5, 0.6), weight_decay=0.7)
    found = TorchOptimizer.of(optimizer, optimizer.param_groups[0])
    assert (found.kind, found.lr) == ("AdamW", 0.5)
    assert found.settings == {"betas": (0.5, 0.6), "eps": 1e-8, "weight_decay": 0.7}

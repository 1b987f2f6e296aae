"""How weights are moved before a compared step: the same elements by the same amounts, whatever rank holds them."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from onecurve.device.local_tensor import Box, local_tensor_of
from onecurve.prove.constant_draws import ConstantDraws
from onecurve.prove.moved_weights import apply_moves, store_moves


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3, padding_idx=1)
        self.bias = nn.Embedding(4, 1, padding_idx=1)
        nn.init.zeros_(self.bias.weight)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.load_state_dict(self.first.state_dict())
        self.first.requires_grad_(False)
        self.tied = self.second
        self.scale, self.phase = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.tables = nn.Linear(2, 2)


def test_signs_and_zeros_stay_and_what_is_all_zero_is_moved(tmp_path: Path) -> None:
    model = Model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with ConstantDraws():  # as while plans are compared
        store_moves(model, 7, tmp_path, without="tables")
        apply_moves([local_tensor_of(name, each, True) for name, each in model.named_parameters()], tmp_path)
    after = dict(model.named_parameters())
    for name in ("embedding.weight", "first.weight", "second.bias"):
        assert torch.equal(after[name].sign(), before[name].sign())
        assert ((after[name] - before[name]).abs() < 0.1).all()
    assert torch.equal(after["embedding.weight"][1], torch.zeros(3))
    assert after["bias.weight"].abs().sum() > 0
    assert after["bias.weight"][1] == 0
    assert not torch.equal(after["first.weight"], after["second.weight"])
    assert len({*(after["first.weight"] / before["first.weight"]).flatten().tolist()}) > 4  # each by another factor
    assert not torch.equal(after["first.weight"], before["first.weight"])
    assert 0.5 < after["scale"] <= 0.52
    assert (after["phase"].real > 1).all()
    assert torch.equal(after["tables.weight"], before["tables.weight"])


def test_a_rank_moves_its_elements_by_the_same_amounts(tmp_path: Path) -> None:
    model = nn.Linear(5, 4)
    store_moves(model, 7, tmp_path, without="tables")
    full = nn.Parameter(model.weight.detach().clone())
    rows = nn.Parameter(full.detach()[[1, 3]].clone())
    sides = [(slice(begin, begin + 1), slice(0, 5)) for begin in range(4)]
    boxes = (Box(sides[1], sides[0]), Box(sides[3], sides[1]))
    part = replace(local_tensor_of("weight", rows, True), shape=(4, 5), boxes=boxes)
    apply_moves([local_tensor_of("weight", full, True)], tmp_path)
    apply_moves([part], tmp_path)
    assert torch.equal(rows, full[[1, 3]])

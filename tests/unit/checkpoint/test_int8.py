"""int8 weights are read back by torchao itself, and compute what quantising the whole model computes."""

import pytest
import torch
from torch import nn

from onecurve.checkpoint.export import LazyTensor, write_changed

torchao = pytest.importorskip("torchao")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.words.weight
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.inner(self.words(x))) * self.scale)


def test_what_is_written_is_what_torchao_reads(tmp_path) -> None:
    from safetensors import safe_open
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    from onecurve.checkpoint.int8 import Int8

    torch.manual_seed(0)
    model = Tied()
    held = dict(model.named_parameters())
    tensors = {name: LazyTensor(p.dtype, tuple(p.shape), p.detach().clone) for name, p in held.items()}
    int8 = Int8(model)
    path = tmp_path / "model.safetensors"
    write_changed(tensors, int8.change, int8.facts(tensors), path)
    with safe_open(str(path), "pt") as file:
        read, rest = unflatten_tensor_state_dict({key: file.get_tensor(key) for key in file.keys()}, file.metadata())  # noqa: SIM118
    assert set(read) == {"inner.weight"}
    assert set(rest) == set(held) - set(read)
    again = Tied()
    again.load_state_dict({**read, **rest, "head.weight": rest["words.weight"]}, assign=True)
    int8.apply(model)
    x = torch.arange(16)
    assert torch.equal(again(x), model(x))

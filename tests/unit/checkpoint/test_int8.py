"""torchao reads the int8 weights that are written, and they compute the same as the model quantized in place."""

import pytest
import torch
from torch import nn

from onecurve.checkpoint.export import LazyTensor, write_transformed

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


def test_torchao_reads_the_written_weights(tmp_path) -> None:
    from safetensors import safe_open
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    from onecurve.checkpoint.int8 import Int8

    torch.manual_seed(0)
    model = Tied()
    parameters = dict(model.named_parameters())
    tensors = {name: LazyTensor(p.dtype, tuple(p.shape), p.detach().clone) for name, p in parameters.items()}
    int8 = Int8(model)
    path = tmp_path / "model.safetensors"
    write_transformed(tensors, int8.quantize_tensor, int8.metadata(tensors), path)
    with safe_open(str(path), "pt") as file:
        stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        quantized, rest = unflatten_tensor_state_dict(stored, file.metadata())
    assert set(quantized) == {"inner.weight"}
    assert set(rest) == set(parameters) - set(quantized)
    loaded = Tied()
    loaded.load_state_dict({**quantized, **rest, "head.weight": rest["words.weight"]}, assign=True)
    int8.quantize_model(model)
    x = torch.arange(16)
    assert torch.equal(loaded(x), model(x))

import torch
from safetensors.torch import load_file, load_model
from torch import nn

from onecurve.checkpoint.weights import save_weights
from onecurve.device.local_tensor import local_tensor_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.words.weight
        self.norm = nn.BatchNorm1d(3)
        self.narrow = nn.Parameter(torch.randn(3).bfloat16())
        self.scalar = nn.Parameter(torch.tensor(2.5, dtype=torch.float64))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.transposed = nn.Parameter(torch.randn(3, 2).t())


def test_the_file_is_safetensors_and_loads_into_the_model(tmp_path) -> None:
    model = Tied()
    tensors = [*model.named_parameters(), *model.named_buffers()]
    path = tmp_path / "weights.safetensors"
    local_tensors, done = [local_tensor_of(name, tensor, True) for name, tensor in tensors], list[tuple[int, int]]()
    save_weights(local_tensors, path, writer=True, on_progress=lambda *bytes_done: done.append(bytes_done))
    total = sum(tensor.nbytes for _, tensor in tensors)
    assert done[-1] == (total, total)
    assert done == sorted(done)
    loaded = load_file(path)
    assert set(loaded) == {name for name, _ in tensors}
    for name, tensor in tensors:
        assert torch.equal(loaded[name], tensor), name
    other = Tied()
    load_model(other, path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert [file.name for file in tmp_path.iterdir()] == ["weights.safetensors"]

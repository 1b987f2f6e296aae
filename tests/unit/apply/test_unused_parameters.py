import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from onecurve.apply.unused_parameters import UnusedParameters
from onecurve.describe.errors import OnecurveError
from onecurve.device.local_tensor import local_tensor_of
from onecurve.measure.fake_process_group import fake_process_group


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

    def forward(self, x, names):
        return sum(getattr(self, name)(x).sum() for name in names)


def step(module: nn.Module, unused: UnusedParameters, *names: str) -> set[str]:
    """The parameters that have a gradient after one backward."""
    module.zero_grad()
    unused.begin_step()
    module(torch.ones(1, 2), names).backward()
    unused.remove_gradients()
    return {name for name, parameter in module.named_parameters() if parameter.grad is not None}


@pytest.fixture
def sharded():
    with fake_process_group(1) as mesh:
        module = Heads()
        fully_shard(module, mesh=mesh)
        local_tensors = [local_tensor_of(name, parameter, True) for name, parameter in module.named_parameters()]
        yield module, UnusedParameters(module, local_tensors, mesh.get_group())


def test_a_parameter_that_no_rank_used_has_no_gradient(sharded) -> None:
    assert step(*sharded, "first") == {"first.weight"}
    assert step(*sharded, "first", "second") == {"first.weight", "second.weight"}
    assert step(*sharded, "second") == {"second.weight"}


def test_a_parameter_that_is_unused_for_the_first_time_later_is_refused(sharded) -> None:
    assert step(*sharded, "first", "second") == {"first.weight", "second.weight"}
    with pytest.raises(OnecurveError, match=r"second\.weight got no gradient in this step"):
        step(*sharded, "first")

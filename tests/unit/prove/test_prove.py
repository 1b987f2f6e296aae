import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onecurve.device.local_tensor import local_tensor_of
from onecurve.prove.comparison import Difference, compare_step, first_and_worst, keep_step
from onecurve.prove.dropout import NoDropout, switch_off
from onecurve.prove.loss_curve import excess, perturb
from onecurve.prove.matrix import matrix
from onecurve.prove.reference import train_on_one_device


def stepped() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    module(torch.randn(5, 4).double()).square().sum().backward()
    return module


def differences(module: nn.Module, folder, loss: float = 2.0) -> list[Difference]:
    trained = [local_tensor_of(name, p, True) for name, p in module.named_parameters()]
    state = [*trained, *(local_tensor_of(name, b, True) for name, b in module.named_buffers())]
    return compare_step(state, trained, 0, loss, 0.1, folder)


def test_equal_is_equal(tmp_path) -> None:
    keep_step(stepped(), 0, 2.0, tmp_path)
    found = differences(stepped(), tmp_path)
    assert {each.size for each in found} == {0.0}
    assert len(found) == 1 + 4 + 7


@pytest.mark.parametrize("tensor", ["0.weight", "1.bias", "1.running_var"])
@pytest.mark.parametrize(("change", "holds"), [(1e-12, True), (1e-7, False), (math.nan, False)])
def test_a_changed_element_is_found(tmp_path, tensor: str, change: float, holds: bool) -> None:
    keep_step(stepped(), 0, 2.0, tmp_path)
    module = stepped()
    with torch.no_grad():
        dict([*module.named_parameters(), *module.named_buffers()])[tensor].view(-1)[1] += change
    worst = first_and_worst(differences(module, tmp_path))
    assert worst.holds == holds
    assert worst.tensor == f"value {tensor}"


def test_tensors_of_every_type_are_compared(tmp_path) -> None:
    def build() -> nn.Module:
        module = nn.Linear(2, 2).double()
        module.register_buffer("flag", torch.tensor(True))
        module.register_buffer("turns", torch.ones(3, dtype=torch.complex64))
        module.register_buffer("places", torch.arange(3))
        torch.nn.init.ones_(module.weight)
        torch.nn.init.ones_(module.bias)
        return module

    keep_step(build(), 0, 2.0, tmp_path)
    module = build()
    assert first_and_worst(differences(module, tmp_path)).holds
    module.turns[1] += 1e-3j
    assert first_and_worst(differences(module, tmp_path)).tensor == "value turns"


def test_a_gradient_that_is_there_or_not_is_found(tmp_path) -> None:
    keep_step(stepped(), 0, 2.0, tmp_path)
    module = stepped()
    module[0].weight.grad = None
    assert first_and_worst(differences(module, tmp_path)).tensor == "gradient 0.weight"


def test_the_cause_is_told_before_the_effect() -> None:
    found = [Difference(1, "value w", 9.0), Difference(1, "gradient w", 1.0), Difference(0, "value w", 1e-12)]
    assert first_and_worst(found) == found[1]
    assert first_and_worst([Difference(2, "loss", 1e-3), *found]) == found[1]


def test_a_curve_is_judged_against_the_spread() -> None:
    reference, perturbed = [3.0, 2.0, 1.0], [[3.0, 2.01, 1.02], [3.0, 1.99, 0.97]]
    assert excess([3.0, 2.02, 1.03], reference, perturbed) == pytest.approx(2.0)
    assert excess([3.0, 2.0, 1.3], reference, perturbed) == pytest.approx(10.0)
    assert excess([3.0, 2.0, math.nan], reference, perturbed) == math.inf


def test_perturbing_changes_the_last_digits_only() -> None:
    one, other = stepped(), stepped()
    perturb(other, 1)
    change = (one[0].weight / other[0].weight - 1).abs()
    assert 0 < change.max() < 1e-6


def test_dropout_is_switched_off_wherever_it_is() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)
            self.lstm = nn.LSTM(4, 4, 2, dropout=0.5)

        def forward(self, x):
            x, _ = self.attention(x, x, x)
            x, _ = self.lstm(F.dropout(self.drop(x), training=self.training))
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    module, mode = Drops(), NoDropout()
    assert switch_off(module) == 3
    x = torch.randn(3, 2, 4)
    with mode:
        assert torch.equal(module(x), module(x))
    assert mode.found


def test_the_matrix_covers_what_is_asked() -> None:
    plans = matrix(16, 4, "fp64")
    texts = {str(plan) for plan in plans}
    assert len(plans) == len(texts) >= 16
    assert all(plan.global_batch == 16 for plan in plans)
    for wanted in (
        "mb16 fp64",
        "replicate2 mb(6,2)×2 fp64",
        "shard4 mb1×4 fp64 reduce=round",
        "replicate2·shard2 mb4 fp64",
    ):
        assert wanted in texts
    assert {plan.mesh.size for plan in matrix(16, 1, "fp64")} == {1}
    assert all(plan.global_batch == 6 for plan in matrix(6, 4, "fp64"))


def test_the_reference_is_plain_training() -> None:
    """One round or four, the plain loop gives the same; it is what everything else is held against."""
    x = torch.randn(8, 4).double()

    def run(rounds: int) -> tuple[list[float], nn.Module]:
        torch.manual_seed(0)
        module, losses = nn.Linear(4, 1).double(), []
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        steps = [[[part] for part in x.chunk(rounds)]] * 3
        measure = lambda m, part: (m(part).square().sum(), len(part))  # noqa: E731
        train_on_one_device(module, optimizer, lambda _: 1.0, 0.1, steps, measure, lambda _, loss: losses.append(loss))
        return losses, module

    (one, a), (four, b) = run(1), run(4)
    assert one == pytest.approx(four)
    torch.testing.assert_close(a.weight, b.weight)
    assert one[0] > one[-1]

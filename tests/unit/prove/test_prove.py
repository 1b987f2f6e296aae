import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onecurve.device.local_tensor import local_tensor_of
from onecurve.prove.comparison import Difference, compare_step, first_or_worst, store_step
from onecurve.prove.dropout import NoDropout, disable_dropout
from onecurve.prove.loss_curve import curve_excess, perturb
from onecurve.prove.matrix import plan_matrix
from onecurve.prove.reference import train_on_one_device


def trained_module() -> nn.Module:
    """A module with gradients; always the same."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    module(torch.randn(5, 4).double()).square().sum().backward()
    return module


def differences(module: nn.Module, folder, loss: float = 2.0) -> list[Difference]:
    trainable = [local_tensor_of(name, p, True) for name, p in module.named_parameters()]
    state = [*trainable, *(local_tensor_of(name, b, True) for name, b in module.named_buffers())]
    return compare_step(state, trainable, 0, loss, 0.1, folder)


def test_equal_runs_have_no_difference(tmp_path) -> None:
    store_step(trained_module(), 0, 2.0, tmp_path)
    found = differences(trained_module(), tmp_path)
    assert {difference.size for difference in found} == {0.0}
    assert len(found) == 1 + 4 + 7  # the loss; gradients; parameters and buffers


@pytest.mark.parametrize("tensor", ["0.weight", "1.bias", "1.running_var"])
@pytest.mark.parametrize(("change", "holds"), [(1e-12, True), (1e-7, False), (math.nan, False)])
def test_a_changed_element_is_found(tmp_path, tensor: str, change: float, holds: bool) -> None:
    store_step(trained_module(), 0, 2.0, tmp_path)
    module = trained_module()
    with torch.no_grad():
        dict([*module.named_parameters(), *module.named_buffers()])[tensor].view(-1)[1] += change
    worst = first_or_worst(differences(module, tmp_path))
    assert worst.holds == holds
    assert worst.tensor == f"value {tensor}"


def test_tensors_of_every_dtype_are_compared(tmp_path) -> None:
    def build() -> nn.Module:
        module = nn.Linear(2, 2).double()
        module.register_buffer("flag", torch.tensor(True))
        module.register_buffer("phases", torch.ones(3, dtype=torch.complex64))
        module.register_buffer("positions", torch.arange(3))
        torch.nn.init.ones_(module.weight)
        torch.nn.init.ones_(module.bias)
        return module

    store_step(build(), 0, 2.0, tmp_path)
    module = build()
    assert first_or_worst(differences(module, tmp_path)).holds
    module.phases[1] += 1e-3j
    assert first_or_worst(differences(module, tmp_path)).tensor == "value phases"


def test_a_missing_gradient_is_found(tmp_path) -> None:
    store_step(trained_module(), 0, 2.0, tmp_path)
    module = trained_module()
    module[0].weight.grad = None
    assert first_or_worst(differences(module, tmp_path)).tensor == "gradient 0.weight"


def test_the_cause_is_reported_before_its_effect() -> None:
    found = [Difference(1, "value w", 9.0), Difference(1, "gradient w", 1.0), Difference(0, "value w", 1e-12)]
    assert first_or_worst(found) == found[1]
    assert first_or_worst([Difference(2, "loss", 1e-3), *found]) == found[1]


def test_a_curve_is_compared_with_the_spread() -> None:
    reference, perturbed = [3.0, 2.0, 1.0], [[3.0, 2.01, 1.02], [3.0, 1.99, 0.97]]
    assert curve_excess([3.0, 2.02, 1.03], reference, perturbed) == pytest.approx(2.0)
    assert curve_excess([3.0, 2.0, 1.3], reference, perturbed) == pytest.approx(10.0)
    assert curve_excess([3.0, 2.0, math.nan], reference, perturbed) == math.inf


def test_perturb_changes_only_the_last_digits() -> None:
    one, other = trained_module(), trained_module()
    perturb(other, 1)
    change = (one[0].weight / other[0].weight - 1).abs()
    assert 0 < change.max() < 1e-6


def test_dropout_is_disabled_in_modules_and_functions() -> None:
    class WithDropout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)
            self.lstm = nn.LSTM(4, 4, 2, dropout=0.5)

        def forward(self, x):
            x, _ = self.attention(x, x, x)
            x, _ = self.lstm(F.dropout(self.drop(x), training=self.training))
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    module, mode = WithDropout(), NoDropout()
    assert disable_dropout(module) == 3
    x = torch.randn(3, 2, 4)
    with mode:
        assert torch.equal(module(x), module(x))
    assert mode.triggered


def test_the_matrix_covers_meshes_rounds_and_uneven_shares() -> None:
    plans = plan_matrix(16, 4, "fp64")
    texts = {str(plan) for plan in plans}
    assert len(plans) == len(texts) >= 16
    assert all(plan.global_batch == 16 for plan in plans)
    for expected in (
        "mb16 fp64",
        "replicate2 mb(6,2)×2 fp64",
        "shard4 mb1×4 fp64 reduce=round",
        "replicate2·shard2 mb4 fp64",
    ):
        assert expected in texts
    alone = plan_matrix(16, 1, "fp64")
    assert {plan.mesh.size for plan in alone} == {1}
    assert {plan.recompute for plan in alone} == {"none", "full", "selective"}
    assert all(plan.global_batch == 6 for plan in plan_matrix(6, 4, "fp64"))


def test_the_reference_does_not_depend_on_the_number_of_rounds() -> None:
    x = torch.randn(8, 4).double()

    def run(rounds: int) -> tuple[list[float], nn.Module]:
        torch.manual_seed(0)
        module, losses = nn.Linear(4, 1).double(), []
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        steps = [[[micro_batch] for micro_batch in x.chunk(rounds)]] * 3
        loss = lambda m, micro_batch: (m(micro_batch).square().sum(), len(micro_batch))  # noqa: E731
        train_on_one_device(module, optimizer, lambda _: 1.0, 0.1, steps, loss, lambda _, value: losses.append(value))
        return losses, module

    (one, a), (four, b) = run(1), run(4)
    assert one == pytest.approx(four)
    torch.testing.assert_close(a.weight, b.weight)
    assert one[0] > one[-1]

"""Which buffers a forward changes, and whether the change depends on the samples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from onecurve.describe.changed_buffers import ChangedBuffers, refusal_of_mesh, refusal_of_rounds
from onecurve.describe.plan import Plan
from onecurve.measure.changed_buffers import find_changed_buffers

Change = Callable[["Changes", Tensor], None]


class Changes(nn.Module):
    """Applies a function to itself and its input in training mode."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change, self.linear = change, nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.change(self, x)
        return self.linear(x) - self.state


def found(model: nn.Module, shape: tuple[int, ...] = (2, 4)) -> ChangedBuffers:
    x = torch.randn(shape)
    return find_changed_buffers(model, x, lambda: model(x))


def in_place(model: Changes, x: Tensor) -> None:
    model.state.mul_(0.9).add_(x.mean(0))


def replaced(model: Changes, x: Tensor) -> None:
    model.state = 0.9 * model.state + x.mean(0)


def written_out(model: Changes, x: Tensor) -> None:
    torch.mean(x, 0, out=model.state)


def through_data(model: Changes, x: Tensor) -> None:
    model.state.data[1:3] = x[0, 1:3]


def after_reading_a_value(model: Changes, x: Tensor) -> None:
    if x.max() < 1000:
        model.state.add_(1)


def random(model: Changes, _x: Tensor) -> None:
    model.state.add_(torch.rand(4))


@pytest.mark.parametrize("change", [in_place, replaced, written_out, through_data, after_reading_a_value, random])
def test_a_change_that_differs_between_ranks_is_data_dependent(change: Change) -> None:
    reads = change is after_reading_a_value
    assert found(Changes(change)) == ChangedBuffers(data_dependent=("state",), reads_values=reads)


def decayed(model: Changes, _x: Tensor) -> None:
    model.state.mul_(0.9)


def from_weights(model: Changes, _x: Tensor) -> None:
    model.state = model.linear.weight.mean(0)


@pytest.mark.parametrize("change", [decayed, from_weights])
def test_a_change_that_is_equal_on_all_ranks_is_data_independent(change: Change) -> None:
    assert found(Changes(change)) == ChangedBuffers(data_independent=("state",))


def test_integers_that_depend_on_the_samples_cannot_be_averaged() -> None:
    counted = found(Changes(lambda model, x: model.count.add_((x > 0).sum())))
    assert counted == ChangedBuffers(data_dependent=("count",), not_floating_point=("count",))
    assert found(Changes(lambda model, x: model.count.add_(len(x)))) == ChangedBuffers(data_independent=("count",))


def test_a_buffer_that_forward_only_reads_is_not_changed() -> None:
    assert found(Changes(lambda model, x: x.add_(model.state))) == ChangedBuffers()


def test_a_model_in_evaluation_mode_is_run_in_training_mode() -> None:
    model = Changes(in_place).eval()
    assert found(model).data_dependent == ("state",)
    assert not model.training


def test_running_statistics_of_instance_norm_are_found_and_those_of_batch_norm_are_not() -> None:
    assert found(nn.BatchNorm1d(4)) == ChangedBuffers()
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    assert found(norm, (2, 4, 5)).data_dependent == ("running_mean", "running_var")


@pytest.mark.parametrize("wrap", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_the_vectors_of_spectral_norm_do_not_depend_on_the_samples(wrap: Callable[[nn.Module], nn.Module]) -> None:
    changed = found(wrap(nn.Linear(4, 4)))
    assert len(changed.data_independent) == 2
    assert changed.data_dependent == ()


class Follower(nn.Module):
    """Forward writes into its own parameters."""

    def __init__(self, write: Callable[["Follower", Tensor], None]) -> None:
        super().__init__()
        self.write, self.fast, self.slow, self.table = write, nn.Linear(4, 4), nn.Linear(4, 4), nn.Embedding(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.write(self, x)
        return self.fast(x) - self.slow(x)


@torch.no_grad()
def moved(model: Follower, _: Tensor) -> None:
    model.slow.weight.lerp_(model.fast.weight, 0.1)


def moved_through_data(model: Follower, _: Tensor) -> None:
    model.slow.weight.data.mul_(0.9).add_(model.fast.weight.data, alpha=0.1)


def assigned_to_data(model: Follower, _: Tensor) -> None:
    model.slow.weight.data = 0.9 * model.slow.weight.data + 0.1 * model.fast.weight.data


@torch.no_grad()
def centred(model: Follower, x: Tensor) -> None:
    model.slow.weight.sub_(x.mean())


def looked_up(model: Follower, x: Tensor) -> None:
    nn.functional.embedding((x > 0).long(), model.table.weight, max_norm=0.5)


@pytest.mark.parametrize("write", [moved, moved_through_data, assigned_to_data])
def test_parameters_that_forward_moves_are_found(write: Callable[[Follower, Tensor], None]) -> None:
    changed = found(Follower(write))
    assert (changed.parameters, changed.data_dependent_parameters) == (("slow.weight",), ())


def test_writes_that_depend_on_the_samples_are_found() -> None:
    assert found(Follower(centred)).data_dependent_parameters == ("slow.weight",)
    changed = found(Follower(looked_up))
    assert changed.data_dependent_parameters == changed.normalized_parameters == ("table.weight",)
    assert found(Follower(lambda *_: None)) == ChangedBuffers()


@pytest.mark.parametrize(
    ("write", "plans"),
    [
        (moved, {"replicate2 mb4": "", "shard2 mb4": "under 'shard'", "mb4×2": "once per round"}),
        (centred, {"replicate2 mb4": "different weights", "mb8": "", "mb4×2": "once per round"}),
        (looked_up, {"replicate2 mb4": "different weights", "mb4×2": "", "pipeline2 mb4×2": "under 'pipeline'"}),
    ],
)
def test_plans_that_cannot_carry_a_write_are_refused(
    write: Callable[[Follower, Tensor], None], plans: dict[str, str]
) -> None:
    changed = found(Follower(write))
    for text, reason in plans.items():
        plan = Plan.parse(text)
        refusal = refusal_of_mesh(changed, plan.mesh, False, False) or refusal_of_rounds(changed, plan.rounds, False)
        assert (reason in refusal) if reason else not refusal, text

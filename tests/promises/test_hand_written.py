"""Odd but legal jobs train what a loop trains that a person wrote by hand, or are refused with a reason."""

from collections.abc import Iterator
from zlib import crc32

import pytest
import torch

from hand_loops import PLANS, LaboratoryProcess, cases_of, compared, files, plans_of, unexpected

_ALL = [(file, name) for file in files() for name in cases_of(file)]

_IN_CI = {
    "gpt",
    "gradient_hook",
    "post_accumulate_hook",
    "private_attribute",
    "parameter_subclass",
    "list_with_parameter",
    "empty_parameter",
    "tied_by_data",
    "attribute_is_view",
    "buffer_shares_parameter",
    "momentum_encoder",
    "max_norm_late",
    "parameters_made_in_forward",
    "lazy_linear",
    "zero_head",
    "queue_buffer",
    "python_counter",
    "counter_in_closure",
    "inner_gradient",
    "layer_drop_python",
    "numpy_mask",
    "rare_skip",
    "late_weighted_class",
    "late_ignored_tokens",
    "loss_with_temperature",
    "l2_of_global_model",
    "annealed_loss",
    "gradual_unfreezing",
    "lbfgs",
    "groups_by_module_type",
    "decays_its_own_rate",
    "late_parameter_average",
    "late_parameter_momentum",
    "sync_batch_norm",
    "random_split_without_generator",
}
"""Cases that CI trains under one plan each. All are trained under all plans among the slow tests."""
_SHORT = ["mb", "accumulation", "mb", "replicate", "mb", "accumulation", "mb", "shard"]


def _short_plan(file: str, name: str) -> str:
    """The plan of a case in CI: one rank for most, because two ranks cost four times as much."""
    allowed = plans_of(cases_of(file)[name])
    preferred = _SHORT[crc32(name.encode()) % len(_SHORT)]
    return preferred if preferred in allowed else allowed[0]


@pytest.fixture(scope="module")
def laboratory() -> Iterator[LaboratoryProcess]:
    process = LaboratoryProcess()
    yield process
    process.close()


@pytest.mark.parametrize(("file", "name"), [each for each in _ALL if each[1] in _IN_CI])
def test_a_job_trains_what_a_hand_written_loop_trains(laboratory: LaboratoryProcess, file: str, name: str) -> None:
    plan = _short_plan(file, name)
    assert not unexpected(cases_of(file)[name], plan, laboratory.outcome(file, name, plan))


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("file", "name"), _ALL)
def test_it_does_so_under_each_plan(laboratory: LaboratoryProcess, file: str, name: str, plan: str) -> None:
    if plan not in plans_of(cases_of(file)[name]):
        pytest.skip("the loop of this case is not written for this plan")
    assert not unexpected(cases_of(file)[name], plan, laboratory.outcome(file, name, plan))


def test_the_comparison_sees_what_differs_and_what_is_missing() -> None:
    weight = torch.ones(3, dtype=torch.float64)
    assert compared({"a": weight}, {"a": weight, "tied": weight}).kind == "equal"
    assert compared({"a": weight}, {"a": weight + 1e-8}).kind == "differs"
    assert compared({"a": weight}, {"a": weight, "other": weight.clone()}).kind == "differs"
    assert compared({"a": weight * float("nan")}, {"a": weight}).kind == "differs"

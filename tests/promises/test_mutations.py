"""A fault put into onecurve on purpose is found by check, which names the first step and the tensor that differ."""

from pathlib import Path

import pytest

import onecurve as oc

JOBS = Path(__file__).parents[1] / "jobs"


@pytest.mark.parametrize(
    ("fault", "plan", "tensor"),
    [
        ("sum_left_out model=gpt", "tensor2 mb16", "loss"),
        ("tied_weight_apart model=gpt", "pipeline2 mb4×4", "gradient"),
        ("rounds_in_another_order model=gpt", "pipeline2 mb4×4", "loss"),
        pytest.param("wrong_divisor", "replicate2 mb8", "gradient", marks=pytest.mark.slow),
        ("clipping_per_rank", "shard2 mb8", "gradient"),
        ("local_batch_norm", "replicate2 mb8", "loss"),
        pytest.param("same_share", "replicate2 mb8", "loss", marks=pytest.mark.slow),
        pytest.param("round_left_out", "replicate2 mb4×2", "loss", marks=pytest.mark.slow),
        pytest.param("unseeded_augmentation", "shard2 mb8", "loss", marks=pytest.mark.slow),
    ],
)
def test_check_names_the_first_step_and_tensor(fault: str, plan: str, tensor: str) -> None:
    result = oc.check(JOBS / "mutated.py", f"fault={fault}".split(), plans=[plan], steps=2, quiet=True)
    assert not result.holds
    verdict = result.verdicts[0]
    assert verdict.step == 1
    assert verdict.size > 1e-6
    assert verdict.tensor.split()[0] == tensor


def test_without_a_fault_the_same_plans_hold() -> None:
    plans = ["replicate2 mb8", "shard2 mb8"]
    assert oc.check(JOBS / "mutated.py", ["fault=none"], plans=plans, steps=2, quiet=True).holds


def test_a_mean_passed_off_as_a_sum_shows_in_rounds() -> None:
    result = oc.check(JOBS / "false_sum.py", plans=["mb8", "mb4×2"], quiet=True)
    assert [verdict.holds for verdict in result.verdicts] == [True, False]


def test_a_token_mean_passed_off_as_a_sample_mean_is_refused_at_start() -> None:
    with pytest.raises(oc.OnecurveError, match=r"not a mean over samples.*return onecurve.Weighted"):
        oc.check(JOBS / "tricky.py", ["loss=token mean"], plans=["replicate2 mb8"], quiet=True)

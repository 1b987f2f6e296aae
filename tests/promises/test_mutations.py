"""`onecurve check` finds faults that are injected into onecurve, and names the first step and tensor that differ."""

import pytest

import onecurve as oc
from harness import JOBS


@pytest.mark.parametrize(
    ("fault", "plan", "tensor"),
    [
        ("missing_all_reduce model=gpt", "tensor2 mb16", "loss"),
        ("tied_gradient_not_reduced model=gpt", "pipeline2 mb4×4", "gradient"),
        ("reversed_rounds_in_last_stage model=gpt", "pipeline2 mb4×4", "loss"),
        pytest.param("wrong_divisor", "replicate2 mb8", "gradient", marks=pytest.mark.slow),
        ("clipping_per_rank", "shard2 mb8", "gradient"),
        ("local_batch_norm", "replicate2 mb8", "loss"),
        pytest.param("same_share", "replicate2 mb8", "loss", marks=pytest.mark.slow),
        pytest.param("skipped_round", "replicate2 mb4×2", "loss", marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    ("job", "plan", "tensor"),
    [
        ("mutated.py fault=halved_gradients_behind_zeros model=zero_head", "replicate2 mb8", "gradient behind."),
        ("mutated.py fault=halved_gradients_behind_zeros model=lora", "shard2 mb8", "gradient base_model."),
    ],
)
def test_a_fault_that_the_initial_weights_hide_is_found_from_moved_weights(job: str, plan: str, tensor: str) -> None:
    if "lora" in job:
        pytest.importorskip("peft")
    script, *arguments = job.split()
    (verdict,) = oc.check(JOBS / script, arguments, plans=[plan], steps=1, quiet=True).verdicts
    assert (verdict.outcome, verdict.step, verdict.moved) == ("differs", 2, True)
    assert verdict.tensor.startswith(tensor)


@pytest.mark.parametrize("model", ["gemma2", "t5", "mamba"])
@pytest.mark.slow
def test_a_fault_in_each_axis_is_found_in_models_of_the_zoo(model: str) -> None:
    pytest.importorskip("transformers")
    plans = ["replicate2 mb4", "shard2 mb4", "tensor2 mb8", "pipeline2 mb4×2"]
    arguments = ["fault=one_in_every_axis", f"model={model}"]
    result = oc.check(JOBS / "mutated.py", arguments, plans=["mb4×2", *plans], steps=1, quiet=True)
    found = {str(verdict.plan): verdict for verdict in result.verdicts}
    assert found.pop("mb4×2 fp64").holds
    assert all(not verdict.holds and verdict.size > 1e-6 for verdict in found.values()), found
    assert len(found) == len(plans)


def test_without_a_fault_the_same_plans_hold() -> None:
    plans = ["replicate2 mb8", "shard2 mb8"]
    assert oc.check(JOBS / "mutated.py", ["fault=none"], plans=plans, steps=2, quiet=True).holds


def test_a_mean_declared_as_a_sum_is_refused_at_start() -> None:
    with pytest.raises(oc.OnecurveError, match="Weighted does not add up"):
        oc.check(JOBS / "false_sum.py", plans=["mb8", "mb4×2"], quiet=True)


def test_a_mean_over_tokens_that_torch_computes_is_weighted_by_its_tokens() -> None:
    assert oc.check(JOBS / "tricky.py", ["loss=token mean"], plans=["replicate2 mb8"], quiet=True).holds

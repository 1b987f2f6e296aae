"""`onecurve check` in this process: its arguments, and one plan on one rank."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onecurve as oc
from harness import JOBS, SMALL
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.requests import CheckRequest
from onecurve.verbs import plan_checker
from onecurve.verbs.check import check_in_ranks


@pytest.fixture(autouse=True)
def restored_determinism() -> Iterator[None]:
    """A check switches torch to deterministic algorithms for the whole process."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"script": "missing.py"}, "missing.py: no such file; give the Python file that defines job"),
        ({"precision": "bf16"}, r"precision 'bf16' \(known: fp64, fp32\)"),
        ({"ranks": 0}, "ranks = 0, .*at least 1"),
        ({"steps": 0}, "steps = 0; .*at least 1"),
        ({"plans": ["auto"]}, "give a plan, or no --plan at all"),
        ({"plans": ["mb8 shared2"]}, "did you mean 'shard'"),
        ({"plans": ["mb4"]}, "global_batch"),
        ({"plans": ["mb8"], "arguments": ["speed=3"]}, r"job\(\) has no argument 'speed'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OnecurveError, match=message):
        oc.check(**({"script": SMALL, "quiet": True} | arguments))


def test_a_plan_with_more_ranks_than_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OnecurveError, match="needs 4 ranks, but this world has 2; start more ranks"):
        oc.check(SMALL, plans=["shard4 mb2"], quiet=True)


def test_one_plan_on_one_rank_holds() -> None:
    result = oc.check(SMALL, plans=["mb8", Plan(Mesh(), 2, 4)], steps=2, quiet=True)
    assert result is not None
    assert result.holds
    assert [verdict.plan for verdict in result.verdicts] == ["mb8 fp64", "mb2×4 fp64"]
    assert all(verdict.size <= result.limit for verdict in result.verdicts)
    assert (result.precision, result.steps) == ("fp64", 2)


def test_without_plans_a_matrix_for_the_given_ranks_is_checked() -> None:
    result = oc.check(SMALL, ranks=1, steps=1, quiet=True)
    assert result is not None
    assert result.holds
    assert len(result.verdicts) > 2
    assert len({verdict.plan for verdict in result.verdicts}) == len(result.verdicts)


def test_no_more_steps_are_compared_than_the_job_has() -> None:
    result = oc.check(SMALL, ["epochs=0.125"], plans=["mb8"], steps=50, quiet=True)
    assert result is not None
    assert result.steps == 1


ZERO_GRADIENTS = JOBS / "zero_gradients.py"


def test_a_fault_behind_a_zero_head_is_found_from_moved_weights(capsys: pytest.CaptureFixture[str]) -> None:
    result = oc.check(ZERO_GRADIENTS, ["model=faulty"], plans=["mb8×2"], steps=1)
    assert result is not None
    (verdict,) = result.verdicts
    assert (verdict.outcome, verdict.step, verdict.moved) == ("differs", 2, True)
    assert verdict.tensor.startswith("gradient behind.")
    assert "first at step 2, from moved weights, gradient behind." in capsys.readouterr().out


def test_parameters_without_a_gradient_are_counted() -> None:
    result = oc.check(ZERO_GRADIENTS, ["model=zero_head"], plans=["mb8×2"], steps=1, quiet=True)
    assert result is not None
    assert result.holds
    assert "1 parameter has no gradient in this check (first: 'unused')" in result.notes


def test_a_model_that_moved_weights_do_not_suit_is_compared_without_them() -> None:
    result = oc.check(ZERO_GRADIENTS, ["model=shares"], plans=["mb8×2"], steps=2, quiet=True)
    assert result is not None
    assert result.holds
    assert "no step from moved weights was compared: its loss or a gradient is not finite" in result.notes


def test_a_check_begins_with_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    """The faulty gradient of the first layer is zero at the initial weights, and there is no second step."""
    arguments = ["model=faulty", "every=2"]
    oc.run(ZERO_GRADIENTS, arguments, plan="mb16", out=tmp_path / "run", quiet=True)
    result = oc.check(tmp_path / "run", at=4, plans=["mb8×2"], steps=1, quiet=True)
    assert result is not None
    (verdict,) = result.verdicts
    assert (verdict.outcome, verdict.step, verdict.moved) == ("differs", 1, False)
    assert verdict.tensor.startswith("gradient behind.")
    assert any(note.startswith("compared from the weights of step 4 of ") for note in result.notes)
    with pytest.raises(OnecurveError, match=r"no checkpoint of step 3 .there are those of 2, 4, 6, 8.; give one"):
        oc.check(tmp_path / "run", at="3", plans=["mb8×2"], quiet=True)
    with pytest.raises(
        OnecurveError, match=r"it has the weights of another model .it was FaultyZeroHead, .* parameters"
    ):
        oc.check(tmp_path / "run", ["model=momentum"], at=2, plans=["mb16"], quiet=True)
    with pytest.raises(OnecurveError, match="--at needs the folder of a run"):
        oc.check(ZERO_GRADIENTS, at=2, plans=["mb8×2"], quiet=True)


def test_the_verdicts_are_printed_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    oc.check(SMALL, plans=["mb8"], steps=1)
    assert "mb8 fp64" in capsys.readouterr().out
    oc.check(SMALL, plans=["mb8"], steps=1, quiet=True)
    assert capsys.readouterr().out == ""


def test_a_job_with_several_optimizers_cannot_be_checked(tmp_path) -> None:
    script = tmp_path / "two.py"
    script.write_text(
        "import onecurve as oc, torch\n"
        "def job():\n"
        "    optimizers = {'0': oc.SGD(lr=0.1), '1': oc.SGD(lr=0.1)}\n"
        "    return oc.Job(model=torch.nn.Sequential, data=list, optimizer=optimizers, global_batch=8, steps=1)\n"
    )
    with pytest.raises(OnecurveError, match=r"two\.py: .*several optimizers.*backward=\"mine\""):
        oc.check(script, plans=["mb8"], quiet=True)


def test_a_refused_plan_does_not_end_the_check() -> None:
    result = oc.check(SMALL, plans=["mb8", "mb3", "mb4×2"], steps=1, quiet=True)
    assert result is not None
    assert {verdict.plan: verdict.outcome for verdict in result.verdicts} == {
        "mb8 fp64": "holds",
        "mb3 fp64": "refused",
        "mb4×2 fp64": "holds",
    }
    assert not result.holds
    assert "global_batch" in next(verdict.reason for verdict in result.verdicts if verdict.plan == "mb3 fp64")


def test_a_failing_plan_on_one_rank_does_not_end_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    original = plan_checker.assemble

    def failing(job, resolved, *rest, **options):
        if resolved.plan.rounds == 2:
            raise RuntimeError("no kernel")
        return original(job, resolved, *rest, **options)

    monkeypatch.setattr(plan_checker, "assemble", failing)
    result = oc.check(SMALL, plans=["mb4×2", "mb8"], steps=1, quiet=True)
    assert result is not None
    assert [verdict.outcome for verdict in result.verdicts] == ["failed", "holds"]
    assert "RuntimeError: no kernel" in result.verdicts[0].reason


def test_a_check_that_a_signal_interrupts_names_it(tmp_path) -> None:
    request = CheckRequest(
        script=SMALL, arguments=(), plans=(), ranks=2, steps=1, precision="fp64", quiet=True, folder=str(tmp_path)
    )
    with pytest.raises(InterruptError, match="interrupted by SIGTERM before all plans were checked") as caught:
        check_in_ranks(request, lambda: "SIGTERM")
    assert caught.value.signal == "SIGTERM"

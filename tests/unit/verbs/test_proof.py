"""What is proved before training: the whole of a small model, blocks of a large one, or nothing, with the reason."""

from pathlib import Path
from typing import Any

import pytest

import onecurve as oc
from harness import EXAMPLES, SMALL, records
from onecurve.data.training_data import open_data
from onecurve.describe.plan import Plan
from onecurve.describe.record import EventRecord
from onecurve.describe.requests import RunRequest
from onecurve.describe.run_agenda import ProofAgenda
from onecurve.job.script import load_job
from onecurve.model.deferred import defer_init
from onecurve.planner.completion import PlanCompleter
from onecurve.runs.folder import ORIGIN
from onecurve.verbs import proof, references


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def agenda(plan: str, folder: Path) -> ProofAgenda:
    script = EXAMPLES / "gpt.py"
    job = load_job(script, ["width=16", "depth=6"])
    data, deferred = open_data(job), defer_init(job.model, job.seed)
    request = RunRequest(
        script=str(script),
        arguments=(),
        out=str(folder),
        fresh=False,
        quiet=True,
        track=(),
    )
    resolved = PlanCompleter(job, data, deferred).resolve(Plan.parse(plan))
    return proof.PlanProof(request).agenda(job, data, deferred, resolved, {})


def test_a_small_model_is_proved_whole(tmp_path: Path) -> None:
    found = agenda("shard2 mb16 recompute=full", tmp_path)
    assert found.resolved is not None
    assert (str(found.resolved.plan), len(found.resolved.blocks)) == ("shard2 mb2 fp64 recompute=full", 6)
    assert found.left_out == ()


def test_of_a_large_model_every_stage_keeps_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_WHOLE_MODEL_PARAMETERS", 0)
    found = agenda("pipeline3 mb8×4", tmp_path)
    assert found.resolved is not None
    assert found.left_out == ("blocks.3", "blocks.4", "blocks.5")
    assert found.resolved.plan.stages == (1, 1, 1)
    assert found.resolved.dataflow is not None
    assert found.resolved.dataflow.blocks == ("blocks.0", "blocks.1", "blocks.2")


def test_a_model_that_is_too_large_for_one_device_is_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "_BYTES_PER_PARAMETER", 1e12)
    found = agenda("shard2 mb16", tmp_path)
    assert found.resolved is None
    assert "parameters needs" in found.obstacle


def events(folder: Path) -> list[EventRecord]:
    found = [record for record in records(folder) if isinstance(record, EventRecord)]
    return [event for event in found if event.event in ("proved", "warning") and not is_of_evaluation(event)]


def is_of_evaluation(event: EventRecord) -> bool:
    """The small job is evaluated on its training data, which each of its runs says."""
    return event.text.startswith("evaluate.data: ")


def test_rounds_on_one_device_are_proved_and_one_round_needs_no_proof(tmp_path: Path) -> None:
    oc.run(SMALL, ["epochs=1"], plan="mb4×2", out=tmp_path / "rounds", quiet=True)
    (event,) = events(tmp_path / "rounds")
    assert event.event == "proved"
    assert event.text.startswith("mb2×2 fp64 computes the same as one device (largest difference")
    oc.run(SMALL, ["epochs=1"], plan="mb8", out=tmp_path / "one", quiet=True)
    assert events(tmp_path / "one") == []


def test_a_run_that_was_proved_on_another_host_is_not_proved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {"plan": "mb4×2", "out": tmp_path / "run", "quiet": True}
    oc.run(SMALL, ["epochs=1"], **arguments)
    (tmp_path / "run" / "summary.json").unlink()
    assert '"proof"' in (tmp_path / "run" / ORIGIN).read_text()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    oc.run(SMALL, ["epochs=1"], **arguments)
    event = events(tmp_path / "run")[-1]
    assert (event.event, event.text) == ("proved", "earlier: when this run was started")


@pytest.mark.parametrize(
    ("loss", "reason"), [(float("nan"), "is not finite on one device"), (None, "cannot compute a step in float64")]
)
def test_a_model_that_one_device_cannot_run_in_float64_is_trained_with_a_warning(
    loss: float | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = references.References._loss

    def changed(self: Any, *arguments: Any) -> Any:
        if loss is None:
            raise RuntimeError("no float64 kernel")
        total, count = original(self, *arguments)
        return total * loss, count

    monkeypatch.setattr(references.References, "_loss", changed)
    summary = oc.run(SMALL, ["epochs=1"], plan="mb4×2", out=tmp_path / "run", quiet=True)
    assert summary is not None
    assert summary.steps == 8
    (event,) = events(tmp_path / "run")
    assert event.event == "warning"
    assert event.text.startswith("the plan is not proved before training: ")
    assert reason in event.text


IN_BATCH = """
import onecurve as oc
from small import job as small_job
from dataclasses import replace

def loss(output, target):  # in float32 the second term looks like rounding
    return ((output - target) ** 2).mean() + 1e-7 * output.mean() ** 2

def job() -> oc.Job:
    return replace(small_job(epochs=1), loss=loss)
"""


def test_a_loss_that_the_proof_refuses_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(SMALL).parent))
    script = tmp_path / "in_batch.py"
    script.write_text(IN_BATCH)
    with pytest.raises(oc.OnecurveError, match="loss 'loss': its scalar is not a mean over samples"):
        oc.run(script, plan="mb4×2", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_a_large_model_that_cannot_be_made_smaller_is_proved_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise oc.OnecurveError("optimizer: no parameter matches")

    monkeypatch.setattr(proof, "_WHOLE_MODEL_PARAMETERS", 0)
    monkeypatch.setattr(proof, "refuse_unmatched_groups", refuse)
    found = agenda("shard2 mb16", tmp_path)
    assert found.left_out == ()
    assert found.resolved is not None
    assert len(found.resolved.blocks) == 6


def test_a_plan_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = references.References._loss
    monkeypatch.setattr(references.References, "_loss", lambda *arguments: (2 * original(*arguments)[0], 1))
    with pytest.raises(oc.OnecurveError, match=r"plan mb4×2 fp32: it does not compute the same.*loss differs by"):
        oc.run(SMALL, ["epochs=1"], plan="mb4×2", out=tmp_path / "run", quiet=True)
    oc.run(SMALL, ["epochs=1"], plan="mb4×2", out=tmp_path / "run", quiet=True, check=False)
    assert events(tmp_path / "run") == []

"""A run continues only with the job that it was started with, or with changes that the user named."""

import pytest

from onecurve.describe.change import JobChange
from onecurve.describe.convert import to_json
from onecurve.describe.data_marks import SAMPLES, DataMarks, SampleMark, ValueMark
from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import EvaluationRecord
from onecurve.job.evaluate import Evaluate
from onecurve.runtime.changed_job import (
    changed_fields,
    refuse_change_of_stale_batches,
    refuse_change_without_checkpoints,
    refuse_change_without_effect,
)
from onecurve.train.early_stopping import BestTracker

SAVED = {"optimizer": "AdamW()", "lr": "0.1", "schedule": "constant()", "global_batch": "8", "steps": "4", "seed": "0"}
WHERE = "runs/a/step-3"
LR = JobChange("lr", "0.1", "0.2", 4)


def refusal(change: tuple[str, ...] = (), earlier: tuple[str, ...] = (), **new: str) -> str:
    with pytest.raises(OnecurveError) as caught:
        changed_fields(SAVED, SAVED | new, WHERE, change, earlier)
    return str(caught.value)


def test_the_same_job_is_accepted() -> None:
    assert changed_fields(SAVED, SAVED, WHERE) == []


def test_a_change_that_was_named_is_accepted() -> None:
    now = SAVED | {"lr": "0.2", "steps": "6"}
    assert changed_fields(SAVED, now, WHERE, ("steps", "lr")) == ["lr", "steps"]


def test_changeable_fields_are_refused_with_both_values_and_the_exact_flag() -> None:
    message = refusal(lr="0.2", steps="6")
    assert message.startswith(
        f"{WHERE}: it was saved by a job that differs in lr, steps (lr was 0.1, is 0.2; steps was 4"
    )
    assert (
        "; add --change lr,steps to continue with the new values, restore the old ones, give another --out" in message
    )
    assert "--fresh" in message


def test_the_flag_has_the_fields_that_were_already_named_too() -> None:
    assert "--change lr,steps to" in refusal(("lr",), lr="0.2", steps="6")


@pytest.mark.parametrize("change", [(), ("lr",)])
def test_other_fields_are_refused_even_beside_changeable_ones(change: tuple[str, ...]) -> None:
    message = refusal(change, lr="0.2", seed="1", optimizer="SGD()")
    assert "restore the old optimizer, seed, which cannot be changed, and add --change lr to continue" in message


def test_no_flag_is_offered_if_nothing_can_be_changed() -> None:
    message = refusal(seed="1")
    assert "restore the old seed, which cannot be changed, give another --out" in message
    assert "--change" not in message


def test_a_field_that_did_not_change_is_refused_with_its_value() -> None:
    message = refusal(("lr", "steps"), lr="0.2")
    assert message.startswith(
        f"{WHERE}: --change steps, but steps did not change: it is 4; change it in the job, or leave"
    )
    assert "a function is compared by its name only" in refusal(("schedule",))


def test_a_command_that_made_a_change_may_be_repeated() -> None:
    assert changed_fields(SAVED, SAVED, WHERE, ("lr",), earlier=("lr",)) == []


def samples(target: str) -> str:
    mark = ValueMark(target, target, (), target)
    return to_json(DataMarks(8, (SampleMark(0, ValueMark("x", "x", (), "x"), mark),), 1))


def test_other_samples_are_refused_with_both_values_and_the_flag() -> None:
    saved = SAVED | {"data": "8 samples", SAMPLES: samples("3")}
    now = saved | {SAMPLES: samples("5")}
    with pytest.raises(
        OnecurveError, match=r"differs in data \(data: dataset\[0\] .*target 3 in the checkpoint, 5 now"
    ):
        changed_fields(saved, now, WHERE)
    with pytest.raises(OnecurveError, match="add --change lr,data"):
        changed_fields(saved, now | {"lr": "0.2"}, WHERE, ["lr"])
    assert changed_fields(saved, now, WHERE, ["data"]) == ["data"]
    assert changed_fields(now, now, WHERE, ["data"], earlier=["data"]) == []


def test_samples_that_an_older_checkpoint_lacks_are_not_compared() -> None:
    assert changed_fields(SAVED, SAVED | {SAMPLES: samples("3")}, WHERE) == []


def test_the_length_of_data_may_change_and_the_lanes_of_a_stream_may_not() -> None:
    saved, now = SAVED | {"data": "8 samples"}, SAVED | {"data": "9 samples"}
    assert changed_fields(saved, now, WHERE, ["data"]) == ["data"]
    saved, now = SAVED | {"data": "a stream of 4 lanes"}, SAVED | {"data": "a stream of 8 lanes"}
    with pytest.raises(OnecurveError, match="restore the old data, which cannot be changed"):
        changed_fields(saved, now, WHERE, ["data"])


def test_a_field_that_an_older_checkpoint_lacks_is_called_not_known() -> None:
    with pytest.raises(OnecurveError, match="clip was not known, is 1"):
        changed_fields(SAVED, SAVED | {"clip": "1.0"}, WHERE)


def test_a_run_without_checkpoints_cannot_be_changed() -> None:
    refuse_change_without_checkpoints((), has_folder=False, saves=False)
    refuse_change_without_checkpoints(("lr",), has_folder=True, saves=True)
    with pytest.raises(OnecurveError, match=r"--change lr,steps: a run without a folder \(out\) has no checkpoint"):
        refuse_change_without_checkpoints(("lr", "steps"), has_folder=False, saves=True)
    with pytest.raises(OnecurveError, match=r"a run without Job\(save=…\) has no checkpoint"):
        refuse_change_without_checkpoints(("lr",), has_folder=True, saves=False)


def test_a_change_needs_a_step_to_have_an_effect() -> None:
    refuse_change_without_effect([], None, 4, 4)
    refuse_change_without_effect([LR], None, 4, 5)
    with pytest.raises(OnecurveError, match=r"lr 0\.1 → 0\.2: the checkpoint has done 4 steps, and the job now has 4"):
        refuse_change_without_effect([LR], None, 4, 4)


def test_a_run_that_stopped_early_needs_more_patience() -> None:
    best = BestTracker(Evaluate(list, every=1, patience=1))
    for step, loss in enumerate((1.0, 2.0)):
        best.add(EvaluationRecord(step, loss, {}, 8, 0.1))
    with pytest.raises(OnecurveError, match=r"lr 0\.1 → 0\.2: the run has stopped early, .*increase patience"):
        refuse_change_without_effect([LR], best, 4, 8)


def test_the_batch_of_a_run_whose_rows_were_fetched_ahead_cannot_be_changed() -> None:
    refuse_change_of_stale_batches(["global_batch"], staleness=0)
    refuse_change_of_stale_batches(["lr"], staleness=2)
    with pytest.raises(OnecurveError, match="--change global_batch: not possible with staleness=2"):
        refuse_change_of_stale_batches(["global_batch", "lr"], staleness=2)

"""The job of a trial does what the run does, except for the change, and touches nothing outside its folder."""

import math

import pytest
from torch import nn

import onecurve as oc
from onecurve.describe.requests import Trial
from onecurve.job.trial import trial_job


def make(**changes) -> oc.Job:
    settings = {
        "model": nn.Identity,
        "loss": oc.loss.mse,
        "data": list,
        "optimizer": oc.SGD(),
        "global_batch": 4,
        "steps": 200,
        "save": oc.Save(every=5, keep_every=10, to="s3://bucket/run"),
        "evaluate": oc.Evaluate(list, every=7, patience=3, test=list),
        "trackers": ["tensorboard"],
    }
    return oc.Job(**(settings | changes))


def trial(job: oc.Job, pause: str = "", **changes) -> oc.Job:
    return trial_job(job, Trial(steps=125, epoch_samples=1000, job=changes, pause=pause))


def test_a_trial_saves_into_its_own_folder_and_tells_no_tracker() -> None:
    tried = trial(make())
    assert tried.save is not None
    assert (tried.save.to, tried.save.keep_every, tried.trackers) == (None, None, ())
    assert tried.save.every == 10**9
    assert tried.evaluate is None
    assert tried.steps == 125


@pytest.mark.parametrize("batch", [1, 3, 4, 7, 64])
def test_a_job_with_epochs_has_the_same_number_of_steps(batch: int) -> None:
    tried = trial(make(steps=None, epochs=2, global_batch=batch))
    assert tried.total_steps(1000) == 125
    assert tried.epochs is not None
    assert math.isfinite(tried.epochs)


def test_the_change_is_made_and_only_the_pause_that_it_is_about() -> None:
    assert trial(make(), workers=4).workers == 4
    assert trial(make(workers=2)).workers == 2
    assert trial(make(), batch_norm="local").batch_norm == "local"
    saved, unchanged = trial(make(), "checkpoint", save_every=50).save, trial(make(), "checkpoint").save
    assert saved is not None
    assert unchanged is not None
    assert (saved.every, unchanged.every) == (50, 5)
    evaluated, as_before = trial(make(), "evaluation", evaluate_every=30).evaluate, trial(make(), "evaluation").evaluate
    assert evaluated is not None
    assert as_before is not None
    assert (evaluated.every, as_before.every) == (30, 7)
    assert (evaluated.patience, evaluated.test) == (None, None)


def test_rows_on_servers_are_not_tried() -> None:
    with pytest.raises(oc.OnecurveError, match="row servers cannot be tried"):
        trial(make(params="local://2"))

"""Decides whether a run may continue although its job has changed. Every refusal names the fields and the fix."""

from collections.abc import Collection, Mapping

from onecurve.describe.change import CHANGEABLE, JobChange
from onecurve.describe.data_marks import SAMPLES, sample_difference
from onecurve.describe.errors import OnecurveError
from onecurve.train.early_stopping import BestTracker

_BLIND_SPOTS = {
    "lr": " (the learning rate of an optimizer function is compared only if it can be built before training)",
    "schedule": " (a function is compared by its name only)",
    "data": " (the length and up to 16 samples are compared)",
}
"""Changes that a fingerprint may miss, by field."""


def changed_fields(
    saved: Mapping[str, str],
    now: Mapping[str, str],
    where: str,
    change: Collection[str] = (),
    earlier: Collection[str] = (),
) -> list[str]:
    """Return the fields in which a job's fingerprint differs from the one that a checkpoint was saved with.

    Refuse fields that are not in `change`, and fields in `change` that do not differ. The fields in `earlier` were
    changed before the checkpoint was saved: the command that changed them may be repeated, for example after a crash.
    """
    changed = [name for name in dict.fromkeys([*now, *saved]) if name != SAMPLES and saved.get(name) != now.get(name)]
    other_samples = ""
    if "data" not in changed:
        other_samples = sample_difference(saved.get(SAMPLES, ""), now.get(SAMPLES, ""), ("in the checkpoint", "now"))
        changed += ["data"] if other_samples else []
    fixed = [name for name in changed if not _may_change(name, saved, now)]
    if fixed or not set(changed) <= set(change):
        details = "; ".join(
            other_samples
            if name == "data" and other_samples
            else f"{name} was {saved.get(name, 'not known')}, is {now.get(name, 'none')}"
            for name in changed
        )
        raise OnecurveError(
            f"{where}: it was saved by a job that differs in {', '.join(changed)} ({details}); {_fix(changed, fixed)}, "
            "give another --out, or add --fresh to start over and remove what is there"
        )
    for name in change:
        if name not in changed and name not in earlier:
            raise OnecurveError(
                f"{where}: --change {name}, but {name} did not change: it is {now[name]}{_BLIND_SPOTS.get(name, '')}; "
                f"change it in the job, or leave {name} out of --change"
            )
    return changed


def refuse_change_of_stale_batches(change: Collection[str], staleness: int) -> None:
    """Raise OnecurveError if a checkpoint has rows for the batches of the next steps, which would become others."""
    others = [name for name in change if name in ("global_batch", "data")]
    if others and staleness:
        raise OnecurveError(
            f"--change {','.join(others)}: not possible with staleness={staleness}: the checkpoint has the rows of the "
            "next batches as they were planned"
        )


def refuse_change_without_checkpoints(change: Collection[str], has_folder: bool, saves: bool) -> None:
    """Raise OnecurveError if the run has no checkpoints at all, so that it cannot be continued."""
    if change and not (has_folder and saves):
        missing = "Job(save=…)" if has_folder else "a folder (out)"
        raise OnecurveError(
            f"--change {','.join(change)}: a run without {missing} has no checkpoint to continue from; add it, or "
            "leave --change out"
        )


def refuse_change_without_effect(
    changes: Collection[JobChange], best: BestTracker | None, done: int, steps: int
) -> None:
    """Raise OnecurveError if no step is left to do after a change. `done`: steps done, of now `steps` in total."""
    if not changes:
        return
    text = "; ".join(map(str, changes))
    if steps <= done:
        raise OnecurveError(
            f"--change: no step is left to do with {text}: the checkpoint has done {done} steps, and the job now has "
            f"{steps}; increase steps or epochs in the job, and add steps to --change"
        )
    if best is not None and best.out_of_patience:
        raise OnecurveError(
            f"--change: no step is left to do with {text}: the run has stopped early, after {done} steps; increase "
            "patience in Evaluate to continue"
        )


def _may_change(name: str, saved: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Lanes of a stream may not change: what was stored of them would be used for others."""
    is_stream = name == "data" and any("stream" in job.get(name, "") for job in (saved, now))
    return name in CHANGEABLE and not is_stream


def _fix(changed: Collection[str], fixed: Collection[str]) -> str:
    changeable = [name for name in changed if name not in fixed]
    flag = f"add --change {','.join(changeable)} to continue with the new values"
    if not fixed:
        return f"{flag}, restore the old ones"
    restore = f"restore the old {', '.join(fixed)}, which cannot be changed"
    return f"{restore}, and {flag} of the others" if changeable else restore

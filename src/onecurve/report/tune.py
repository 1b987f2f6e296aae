"""The output of `onecurve tune`."""

from typing import Any

from onecurve.describe.tuning import RangeTest, TunedTrial, Tuning
from onecurve.describe.units import seconds_text

_MAX_ROWS = 10


def trial_line(trial: TunedTrial, objective: str) -> str:
    """One trial that has ended."""
    value = f", {objective} {trial.value:.4g}" if trial.value is not None else ""
    note = f": {trial.note}" if trial.note else ""
    return (
        f"trial {trial.number}  {_arguments(trial)}  {trial.outcome} after {trial.steps:,} steps "
        f"({seconds_text(trial.seconds)}){value}{note}"
    )


def tune_lines(tuning: Tuning) -> list[str]:
    """The best trials, and the command that trains with the best arguments."""
    shown = tuning.trials[:_MAX_ROWS]
    width = max([len("arguments"), *(len(_arguments(trial)) for trial in shown)])
    lines = [f"{'trial':>5}  {'arguments':<{width}}  {tuning.objective:>18}  {'steps':>7}  outcome"]
    for trial in shown:
        value = f"{trial.value:.4g}" if trial.value is not None else ""
        lines.append(
            f"{trial.number:>5}  {_arguments(trial):<{width}}  {value:>18}  {trial.steps:>7,}  {trial.outcome}"
        )
    if len(tuning.trials) > len(shown):
        lines.append(f"{'':>5}  and {len(tuning.trials) - len(shown)} more")
    full = tuning.trial_steps * len(tuning.trials)
    if full:
        lines += [
            "",
            f"{tuning.steps:,} training steps, {tuning.steps / full:.0%} of what all trials to their end need",
        ]
    if tuning.importance:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in tuning.importance.items())
        lines.append(f"what makes the difference: {shares}")
    lines += [f"page: {tuning.out}/tune.html", ""]
    if tuning.best is None:
        return [*lines, "no trial was finished; give more --trials"]
    return [*lines, "train with the best arguments:", f"  {tuning.command}"]


def range_lines(test: RangeTest) -> list[str]:
    """What a range test shows."""
    return [
        f"the loss falls fastest at {test.argument}={test.fastest:.3g}",
        f"it is lowest at {test.argument}={test.lowest:.3g}; larger rates make it grow",
        f"page: {test.out}/range-test.html",
    ]


def best_file(tuning: Tuning, best: TunedTrial) -> dict[str, Any]:
    """The content of best.toml."""
    return {
        "version": 1,
        "objective": tuning.objective,
        "value": best.value,
        "trial": best.number,
        "command": tuning.command,
        "arguments": dict(best.arguments),
    }


def _arguments(trial: TunedTrial) -> str:
    return " ".join(f"{name}={text}" for name, text in trial.arguments.items())

"""The output of `onecurve tune`."""

from typing import Any

from onecurve.describe.tuning import BatchTest, RangeTest, TunedTrial, Tuning
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
            f"{tuning.steps:,} training steps, {tuning.steps / full:.0%} of the steps of all trials without pruning",
        ]
    if tuning.importance:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in tuning.importance.items())
        lines.append(f"parameter importance: {shares}")
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


def batch_lines(test: BatchTest) -> list[str]:
    """The batch now and the suggested one, and how they differ."""
    now, then = test.now, test.suggested
    lines = [f"gradient noise scale: {test.noise_scale:,.0f} samples", ""]
    lines.append(f"{'':<10}  {'global batch':>12}  {'lr':>9}  {'steps':>10}  {'samples':>13}  {'time':>10}  plan")
    for name, choice in (("now", now), ("suggested", then)):
        lines.append(
            f"{name:<10}  {choice.global_batch:>12,}  {choice.lr:>9.3g}  {choice.steps:>10,}  {choice.samples:>13,}  "
            f"{seconds_text(3600 * choice.hours):>10}  {choice.plan}"
        )
    if then.global_batch == now.global_batch:
        return [*lines, "", "the global batch suits the job"]
    return [
        *lines,
        "",
        f"to reach about the same loss, the suggested batch needs {_change(then.samples, now.samples, 'fewer')} "
        f"samples and {_change(then.hours, now.hours, 'less')} time; its learning rate follows the {test.rule} rule",
    ]


def _change(after: float, before: float, less: str) -> str:
    return f"{abs(after / before - 1):.0%} {'more' if after > before else less}"


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

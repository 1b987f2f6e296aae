"""A study: the trials so far, what to try next, and which trials to prune. Optuna decides; its journal keeps it."""

import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from onecurve.describe.errors import OnecurveError
from onecurve.describe.seed import mix
from onecurve.describe.tuning import Outcome, TunedTrial
from onecurve.study.claims import Claims
from onecurve.study.search_space import Choices, Range, SearchSpace

JOURNAL = "study.journal"
_REDUCTION = 3
"""Of so many trials that have come as far, one goes on."""
_RUNGS = (1 / 6, 1 / 2)
"""Parts of a trial after which it may be pruned."""
_LEAST_FINISHED = 5
"""Fewer trials say nothing about which argument matters."""
_MAX_REPEATED = 50
"""Suggestions in a row that were tried before, after which there is nothing left to try."""

_OUTCOMES: dict[TrialState, Outcome] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Study:
    """The trials of a study that this process and others work on."""

    def __init__(self, folder: Path, space: SearchSpace, *, maximize: bool, steps: int, seed: int = 0) -> None:
        """`steps`: training steps of a trial."""
        optuna.logging.set_verbosity(logging.ERROR)
        self._space, self._seed = space, seed
        self.claims = Claims(folder / "claims")
        direction: Literal["minimize", "maximize"] = "maximize" if maximize else "minimize"
        self._sign = -1.0 if maximize else 1.0
        with self.claims.alone():
            self._study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
                study_name="onecurve",
                direction=direction,
                load_if_exists=True,
                pruner=SuccessiveHalvingPruner(
                    min_resource=max(1, math.ceil(_RUNGS[0] * steps)), reduction_factor=_REDUCTION
                ),
            )
            self._refuse_another_search(direction, steps)

    def _refuse_another_search(self, direction: str, steps: int) -> None:
        """Refuse to go on with a study that has searched something else: its trials could not be compared."""
        searched = {name: str(each) for name, each in self._space.searched.items()}
        now = {"searched": searched, "fixed": list(self._space.fixed), "direction": direction, "steps": steps}
        before = self._study.user_attrs.get("search")
        if before is None:
            self._study.set_user_attr("search", now)
        elif before != now:
            changed = [name for name in now if before.get(name) != now[name]]
            raise OnecurveError(
                f"tune: this study was begun with other arguments ({', '.join(changed)}); give them again, or another "
                "--out for a new study"
            )

    def take(self, wanted: int) -> "TakenTrial | None":
        """Take a trial that another process has left, or a new one; None if as many are finished or taken as are
        `wanted`, or if there is nothing left to try."""
        with self.claims.alone():
            for trial in self._study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                if not self.claims.is_taken(trial.number):
                    self.claims.take(trial.number)
                    return TakenTrial(self, Trial(self._study, trial._trial_id), self._texts(trial), trial.last_step)
            if len(self._counted()) >= wanted:
                return None
            return self._new_trial()

    def _new_trial(self) -> "TakenTrial | None":
        tried = {tuple(self._texts(trial).items()) for trial in self._counted()}
        if self._space.combinations is not None and len(tried) >= self._space.combinations:
            return None
        for _ in range(_MAX_REPEATED):
            number = len(self._study.get_trials(deepcopy=False))
            # Whichever process asks gets the same suggestion: the seed follows the trials, not the process.
            self._study.sampler = TPESampler(
                seed=mix(self._seed, number) % 2**32,
                n_startup_trials=5,
                multivariate=True,
            )
            trial = self._study.ask(self._distributions())
            texts = self._texts(self._frozen(trial))
            if tuple(texts.items()) not in tried:
                self.claims.take(trial.number)
                return TakenTrial(self, trial, texts)
            trial.set_user_attr("repeated", True)
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def trials(self) -> list[TunedTrial]:
        """All trials, the best first."""
        found = [self._tuned(trial) for trial in self._counted()]

        def rank(trial: TunedTrial) -> tuple[bool, float, int]:
            finished = trial.value is not None and math.isfinite(trial.value)
            return not finished, self._sign * (trial.value or 0.0) if finished else 0.0, -trial.steps

        return sorted(found, key=rank)

    def importance(self) -> dict[str, float]:
        """How much of the differences each argument explains, in sum 1; empty if there are too few trials."""
        finished = self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        if len(finished) < _LEAST_FINISHED or len(self._space.searched) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(optuna.importance.get_param_importances(self._study))

    def _counted(self) -> list[FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False)
        return [trial for trial in trials if not trial.user_attrs.get("repeated")]

    def _frozen(self, trial: Trial) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[trial.number]

    def _tuned(self, trial: FrozenTrial) -> TunedTrial:
        value = trial.user_attrs.get("value")
        return TunedTrial(
            number=trial.number,
            arguments=self._texts(trial),
            outcome=_OUTCOMES.get(trial.state, "running"),
            value=float(value) if value is not None else None,
            steps=int(trial.user_attrs.get("steps", 0)),
            seconds=float(trial.user_attrs.get("seconds", 0.0)),
            curve=tuple(sorted(trial.intermediate_values.items())),
            note=str(trial.user_attrs.get("note", "")),
        )

    def _texts(self, trial: FrozenTrial) -> dict[str, str]:
        """The searched arguments of a trial, in the order in which they were given."""
        return {
            name: each.text(trial.params[name]) if isinstance(each, Range) else str(trial.params[name])
            for name, each in self._space.searched.items()
        }

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {name: _distribution(each) for name, each in self._space.searched.items()}

    def tell(self, trial: Trial, state: TrialState, value: float | None) -> None:
        with self.claims.alone():  # or another process sees it as running, and nobody's
            self._study.tell(trial, value, state=state)
            self.claims.drop(trial.number)


class TakenTrial:
    """A trial that this process works on."""

    def __init__(self, study: Study, trial: Trial, texts: Mapping[str, str], reported: int | None = None) -> None:
        """`reported`: the last step whose value is known already."""
        self._study, self._trial = study, trial
        self.texts = texts
        self.number = trial.number
        self._reported = -1 if reported is None else reported

    def renew(self) -> None:
        """Say that this process still works on it."""
        self._study.claims.take(self.number)

    def report(self, step: int, value: float) -> bool:
        """Note a value after a step; return True if the trial is to be pruned."""
        if step <= self._reported:
            return False
        self._reported = step
        self._trial.report(value, step)
        return not math.isfinite(value) or self._trial.should_prune()

    def finish(self, value: float, steps: int, seconds: float) -> None:
        self._note(steps, seconds, "")
        self._trial.set_user_attr("value", value)
        self._study.tell(self._trial, TrialState.COMPLETE, value)

    def give_up(self, steps: int, seconds: float, why: str = "") -> None:
        """Others are better, or it diverges."""
        self._note(steps, seconds, why)
        self._study.tell(self._trial, TrialState.PRUNED, None)

    def fail(self, steps: int, seconds: float, why: str) -> None:
        self._note(steps, seconds, why)
        self._study.tell(self._trial, TrialState.FAIL, None)

    def leave(self) -> None:
        """Let another process go on with it."""
        self._study.claims.drop(self.number)

    def _note(self, steps: int, seconds: float, note: str) -> None:
        for name, value in {"steps": steps, "seconds": seconds, "note": note}.items():
            self._trial.set_user_attr(name, value)


def _distribution(searched: Range | Choices) -> BaseDistribution:
    if isinstance(searched, Choices):
        return CategoricalDistribution(searched.values)
    if searched.is_integer:
        return IntDistribution(round(searched.low), round(searched.high), log=searched.is_logarithmic)
    return FloatDistribution(searched.low, searched.high, log=searched.is_logarithmic)

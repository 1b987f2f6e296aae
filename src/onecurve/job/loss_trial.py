"""Tests that a loss can be split: that the micro-batches of a batch together have the loss of the whole batch."""

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.scalar_form import ScalarForm
from onecurve.device.rng import seeded
from onecurve.job.batch import MicroBatch
from onecurve.job.hugging_face_labels import field_of
from onecurve.job.hugging_face_loss import (
    auxiliary_fields,
    refuse_other_auxiliary,
    refuse_other_labels,
    returns_hugging_face_loss,
)
from onecurve.job.job import Loss
from onecurve.job.loss import TAKES_INPUTS, hugging_face, hugging_face_local_auxiliary
from onecurve.job.loss_value import Form, LossValue, difference, evaluate, join
from onecurve.job.objective import loss_name as _name
from onecurve.job.objective import uneven_text
from onecurve.job.rare_targets import refuse_rare_targets
from onecurve.job.scalar_form import is_uneven

TRIAL_SAMPLES = 12
"""Number of samples on which a loss is tested, at most."""
_SCALAR_TRIALS = 3
"""A scalar shows less than values per sample: two losses that are nearly equal can hide a wrong weighting."""
_OTHER_DRAWS = (1000, 1001, 1002)
"""Seeds of forwards that are repeated, to see whether the output depends on random numbers. A trial's seed is its
number."""
_NOISE_FACTOR = 10.0
_MAX_LOW_PRECISION_EPS = 4.0
"""In 16 bits the tolerance is ten times the measured rounding, and at most four times the dtype's eps."""


_LOCAL_AUXILIARY = (
    "loss 'hugging_face_local_auxiliary': the auxiliary loss is that of each micro-batch, so the result depends on the "
    "plan's micro-batch size"
)


@dataclass(frozen=True, kw_only=True)
class LossTrial:
    """A model in evaluation mode on which a loss is tested. All ranks of the model make the same calls."""

    infer: Callable[[MicroBatch], Any]
    """Returns the model's output. The trials call `output`."""
    read: Callable[[int, int, int], MicroBatch]
    """`read(begin, end, copies)` reads and collates the samples at these positions, `copies` times in a row."""
    low_precision: torch.dtype | None = None
    """The 16-bit dtype that the model computes in, if any."""
    judges: bool = True
    """False on a rank whose outputs are placeholders, because it does not hold the end of the model."""
    on_any_rank: Callable[[bool], bool] = lambda found: found
    """Returns True if any rank of the model passes True."""
    on_form: Callable[[ScalarForm], None] = lambda _: None
    """Called with what a scalar of the loss means."""
    kept_state: Callable[[], AbstractContextManager[None]] = nullcontext
    """Returns a context that restores what a forward or a loss changes in Python, such as a counter of its calls, so
    that a batch and its parts begin with the same."""

    def output(self, micro: MicroBatch, draw: int = 0) -> Any:
        """Return the model's output for a micro-batch. Its forward draws from generators that begin with this seed.

        A number that forward draws once per call (layer drop) is the same for a batch and for its parts.
        """
        with self.kept_state(), seeded(draw):
            return self.infer(micro)

    def repeated(self, micro: MicroBatch) -> list[Any]:
        """Return outputs for a micro-batch with other random numbers than in its trial."""
        return [self.output(micro, draw) for draw in _OTHER_DRAWS]

    def refuse_unsplittable(self, loss: Loss, first: MicroBatch) -> str:
        """Raise OnecurveError if the loss of some samples is not determined by the losses of its parts.

        Args:
            loss: The user's loss.
            first: The micro-batch at position 0.

        Returns:
            What could not be tested and why, as a note for the user; empty if everything was tested.
        """
        output, full = self._try(loss, first)
        notes = [refuse_other_labels(output, first)] if loss is hugging_face and self.judges else []
        tolerance = self._tolerance(loss, full, first.samples)
        forms: list[ScalarForm] = []
        for trial in range(_SCALAR_TRIALS if full.form == "scalar" else 1):
            if first.samples > 1:
                micros = self.whole_and_parts(first, trial)
                tried = [(output, full) if m is first else self._try(loss, m, full.form, trial) for m in micros]
                notes.append(self._compare(loss, micros, tried, tolerance, forms))
        if full.form == "scalar" and first.samples > 1:
            self.on_form(self._agreed_form(forms, full))
            if forms and self.judges and not forms[0].counted:
                refuse_rare_targets(loss, output, first, forms[0], self.kept_state)
        return " ".join(filter(None, notes))

    def refuse_uneven_step(self, loss: Loss, form: ScalarForm, micro: MicroBatch, step: int) -> None:
        """Raise OnecurveError if a scalar loss of a micro-batch that is trained on is no mean over samples.

        `form`: what the trial before training has found; if the loss computes means, each step compares their counts.
        """
        with self.kept_state():
            output = self.infer(micro)
            if self.judges:
                refuse_rare_targets(loss, output, micro, form, self.kept_state, step)

    def refuse_branch(self, loss: Loss, micros: list[MicroBatch], decided: str) -> None:
        """Raise OnecurveError if the loss of the first micro-batch is not that of its parts, the others.

        `decided`: what forward has decided by the values of a micro-batch.
        """
        whole = self._try(loss, micros[0])
        tried = [whole, *(self._try(loss, micro, whole[1].form) for micro in micros[1:])]
        try:
            self._compare(loss, micros, tried, self._tolerance(loss, whole[1], micros[0].samples), [])
        except OnecurveError as error:
            raise OnecurveError(
                f"model: forward takes a branch for a whole micro-batch, and what it computes for a sample depends on "
                f"it ({decided}): {error} Decide for each sample (torch.where), or use a plan of one device and one "
                "round"
            ) from None

    def _try(self, loss: Loss, micro: MicroBatch, form: Form | None = None, draw: int = 0) -> tuple[Any, LossValue]:
        """Return output and loss of a micro-batch. `form`: that of the first one; None for the first one.

        The loss follows its forward at once, because it may read what forward has left in the model.
        """
        with self.kept_state():
            with seeded(draw):
                output = self.infer(micro)
            return output, _evaluate_first(loss, output, micro) if form is None else evaluate(loss, output, micro, form)

    def _agreed_form(self, forms: list[ScalarForm], full: LossValue) -> ScalarForm:
        """Return what a scalar means, by the ranks that judge: a rank with placeholders may hold the end of the model
        in the next plan. The counts are functions of the targets, which all ranks have."""
        found = forms[0] if forms and self.judges else None
        counted = self.on_any_rank(found is not None and found.counted)
        unknown = self.on_any_rank(found is not None and not found.counted and found.per_sample is None)
        return ScalarForm(counted, None if counted or unknown else full.per_sample)

    def whole_and_parts(self, first: MicroBatch, trial: int) -> list[MicroBatch]:
        """Return the micro-batch of a trial and two unequal parts of it, each collated from its own samples."""
        size = first.samples
        begin, middle, end = trial * size, trial * size + max(1, size // 3), (trial + 1) * size
        whole = first if trial == 0 else self.read(begin, end, 1)
        return [whole, self.read(begin, middle, 1), self.read(middle, end, 1)]

    def _compare(
        self,
        loss: Loss,
        micros: list[MicroBatch],
        tried: list[tuple[Any, LossValue]],
        tolerance: float,
        forms: list[ScalarForm],
    ) -> str:
        """Compare the loss of the first micro-batch with those of its parts. Returns what could not be tested.

        `tried`: their outputs and losses. `forms`: what a scalar of the loss can mean by the trials so far, the better
        first; empty before the first one.
        """
        outputs = [output for output, _ in tried]
        if loss is hugging_face_local_auxiliary and field_of(outputs[0], "aux_loss") is not None:
            if self.judges:
                refuse_other_auxiliary(outputs, micros)
            return _LOCAL_AUXILIARY
        whole, *parts = [value for _, value in tried]
        if whole.form == "scalar":
            possible = _possible_forms(whole, parts, tolerance)
            forms[:] = [each for each in possible if not forms or each in forms]
            differs = self.judges and not forms
        else:
            differs = self.judges and not difference(whole, join(parts)) <= tolerance
        if not self.on_any_rank(differs):
            return ""
        repeated = [self._try(loss, micros[0], whole.form, draw)[1] for draw in _OTHER_DRAWS]
        if not differs:
            return ""
        if any(difference(whole, other) > tolerance for other in repeated):
            return _random(loss, whole.form)
        raise OnecurveError(_Refusal(loss, outputs[0], micros, whole, parts).text())

    def _tolerance(self, loss: Loss, full: LossValue, size: int) -> float:
        """Return the relative difference that is still called rounding.

        In 16 bits it is measured: the same samples twice have the same mean as once, for any mean over samples or
        tokens.
        """
        if self.low_precision is None:
            return full.tolerance
        twice = self.read(0, size, 2)
        _, doubled = self._try(loss, twice, full.form)
        terms = doubled.terms[:size] if full.form == "per sample" else doubled.terms / 2
        noise = difference(full, LossValue(form=full.form, terms=terms, count=full.count, tolerance=full.tolerance))
        limit = _MAX_LOW_PRECISION_EPS * torch.finfo(self.low_precision).eps
        return max(full.tolerance, min(_NOISE_FACTOR * noise, limit))


def _possible_forms(whole: LossValue, parts: list[LossValue], tolerance: float) -> list[ScalarForm]:
    """Return what a scalar can mean: that by which the parts together have the value of the whole."""
    forms = []
    counted = [part.counted for part in parts if part.counted is not None]
    of_whole = whole.counted
    if of_whole is not None and len(counted) == len(parts) and difference(of_whole, join(counted)) <= tolerance:
        forms.append(ScalarForm(counted=True))
    if difference(whole, join(parts)) <= tolerance:
        if any(len(part.functions) != len(whole.functions) for part in parts):  # it calls them for each sample
            forms.append(ScalarForm())
        elif not any(is_uneven(part.per_sample, whole.per_sample) for part in parts):
            forms.append(ScalarForm(per_sample=whole.per_sample))
    return forms


def _evaluate_first(loss: Loss, output: Any, first: MicroBatch) -> LossValue:
    try:
        return evaluate(loss, output, first)
    except UserCodeError as error:
        frame = traceback.extract_tb(error.__cause__.__traceback__ if error.__cause__ else None)[-1:]
        where = "".join(f" at {file.filename}:{file.lineno}" for file in frame)
        raise OnecurveError(
            f"{error}{where}. This is the output in evaluation mode (model.eval()), in which a loss is tested before "
            "training. If forward returns something else in training mode (a dict of losses, auxiliary outputs), let "
            "it return the same in both modes, or let the loss accept both"
        ) from error.__cause__


def _random(loss: Loss, form: Form) -> str:
    """Return the note on a model whose forward draws random numbers; a scalar loss of it is refused."""
    if form == "scalar":
        raise OnecurveError(
            f"{_name(loss)}: it returns a scalar, and the model draws random numbers in its forward, so it cannot be "
            "tested whether that scalar is a mean over samples; return one value per sample, or "
            "onecurve.Weighted(sum, count)"
        )
    return (
        f"{_name(loss)}: the model draws random numbers in its forward, also in evaluation mode, so it was not tested "
        "whether the loss of a sample depends on the other samples of its batch; if it does, the result depends on the "
        "plan"
    )


@dataclass(frozen=True)
class _Refusal:
    """The facts of a loss that cannot be split: the whole micro-batch and its two parts."""

    loss: Loss
    output: Any
    micros: list[MicroBatch]
    whole: LossValue
    parts: list[LossValue]

    def text(self) -> str:
        if self.whole.form == "scalar" and self._is_uneven():
            return uneven_text(self.loss, self.whole.functions)
        facts, fix = {"scalar": self._scalar, "per sample": self._per_sample, "weighted": self._weighted}[
            self.whole.form
        ]()
        of_model = self._hugging_face()
        if any(self.loss is known for known in TAKES_INPUTS):
            fix = ""  # it is not the user who can change what such a loss returns
        return " ".join(filter(None, [f"{_name(self.loss)}: {facts}", fix, self._padding(), of_model]))

    def _is_uneven(self) -> bool:
        """True if the scalar is made of a mean whose count is not the same for every sample."""
        is_one_mean = self.whole.counted is not None
        return not is_one_mean and any(
            len(part.per_sample) == len(self.whole.per_sample) and is_uneven(part.per_sample, self.whole.per_sample)
            for part in self.parts
        )

    def _scalar(self) -> tuple[str, str]:
        size, first, second = (micro.samples for micro in self.micros)
        total = sum(part.mean for part in self.parts)
        if abs(self.whole.mean - total) <= self.whole.tolerance * abs(total):
            return (
                f"its scalar is a sum over samples, not a mean: {size} samples at once give {self.whole.mean:.6g}, "
                f"parts of {first} and {second} give {self.parts[0].mean:.6g} and {self.parts[1].mean:.6g}.",
                "Return the mean (reduction='mean'), or onecurve.Weighted(sum, count).",
            )
        return (
            f"its scalar is not a mean over samples: {size} samples at once give {self.whole.mean:.6g}, the same "
            f"samples in parts of {first} and {second} give {join(self.parts).mean:.6g}.",
            "If it is a mean over something else (tokens without padding), return onecurve.Weighted(sum, count). If it "
            "compares the samples of a batch with each other (contrastive), use onecurve.loss.whole_batch.",
        )

    def _per_sample(self) -> tuple[str, str]:
        size, first, second = (micro.samples for micro in self.micros)
        joined = join(self.parts).terms
        worst = int((self.whole.terms - joined).abs().nan_to_num(float("inf")).argmax())
        company = first if worst < first else second
        return (
            f"the value of a sample depends on the other samples of its batch: sample {worst} has "
            f"{float(self.whole.terms[worst]):.6g} among {size} samples, and {float(joined[worst]):.6g} among "
            f"{company} of them. {self._source()}".rstrip(),
            "A batch that is split would train another objective, so it is refused. Compare each sample with its own "
            "target only; for a loss that compares the samples of a batch with each other (contrastive), use "
            "onecurve.loss.whole_batch.",
        )

    def _weighted(self) -> tuple[str, str]:
        size, first, second = (micro.samples for micro in self.micros)
        joined = join(self.parts)
        return (
            f"its Weighted does not add up: {size} samples at once give sum {float(self.whole.terms):.6g} and count "
            f"{self.whole.count:g}, the same samples in parts of {first} and {second} together give sum "
            f"{float(joined.terms):.6g} and count {joined.count:g}.",
            "Return the sum over the items of the batch, not their mean, with the number of items. If samples are "
            "compared with each other (contrastive), use onecurve.loss.whole_batch.",
        )

    def _source(self) -> str:
        """Say whether it is the loss or the model that mixes samples, as far as this can be told."""
        size, first, _ = (micro.samples for micro in self.micros)
        micro = self.micros[0]
        if not all(
            leaf is None or (isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size)
            for leaf in pytree.tree_leaves((self.output, micro.target))
        ):
            return ""

        def cut(begin: int, end: int) -> LossValue:
            sliced = pytree.tree_map(
                lambda leaf: None if leaf is None else leaf[begin:end], (self.output, micro.target)
            )
            return evaluate(self.loss, sliced[0], MicroBatch(None, sliced[1], end - begin), self.whole.form)

        try:
            loss_splits = difference(self.whole, join([cut(0, first), cut(first, size)])) <= self.whole.tolerance
        except Exception:  # user code: the loss may not accept a slice of the output
            return ""
        if loss_splits:
            return "The loss treats each sample by itself; it is the model's output that depends on the other samples."
        return "The model's output for a sample does not explain it; it is the loss that mixes samples."

    def _padding(self) -> str:
        if len({shapes_of(micro) for micro in self.micros}) == 1:
            return ""
        return (
            "The shape of these micro-batches depends on the samples in them, so padding may be the cause: mask it in "
            "the model and in the loss, or pad every sample to the same length."
        )

    def _hugging_face(self) -> str:
        if not returns_hugging_face_loss(self.output, self.micros[0]):
            return ""
        auxiliary = auxiliary_fields(self.output)
        if auxiliary:
            choice = (
                "accept its value per micro-batch, which depends on the plan's micro-batch size: "
                "loss=onecurve.loss.hugging_face_local_auxiliary"
                if auxiliary == ["aux_loss"]
                else "return a onecurve.Weighted without it"
            )
            return (
                f"The output's loss contains {' and '.join(auxiliary)}, a statistic of all tokens of the batch (load "
                "balancing of experts) that cannot be split exactly. Leave it out (output_router_logits=False), or "
                f"{choice}."
            )
        if self.loss is hugging_face:
            return (
                "The model's output.loss is not a mean over its labels. Compute the loss from output.logits, and "
                "return a onecurve.Weighted."
            )
        return (
            "For the loss inside a Hugging Face model use loss=onecurve.loss.hugging_face, which weights it by its "
            "labels."
        )


def shapes_of(micro: MicroBatch) -> tuple[tuple[int, ...], ...]:
    """The shapes of the tensors of a micro-batch, without the dimension of its samples."""
    leaves = pytree.tree_leaves((micro.inputs, micro.target))
    return tuple(tuple(leaf.shape[1:]) for leaf in leaves if isinstance(leaf, Tensor))

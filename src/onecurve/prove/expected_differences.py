"""Removes differences between plans that are no errors: dropout, random draws, and casts to float32."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from onecurve.prove.constant_draws import ConstantDraws
from onecurve.prove.dropout import NoDropout, disable_dropout
from onecurve.prove.upcast_mode import UpcastMode


class ExpectedDifferences:
    """Switches off what differs between plans by design, in the one-device run and under every plan alike."""

    def __init__(self, exact: bool) -> None:
        """`exact`: the comparison is in float64."""
        self._exact = exact
        self._no_dropout, self._draws, self._upcast = NoDropout(), ConstantDraws(), UpcastMode()
        self._dropout_modules = 0
        self._unknown_draws = False

    @contextmanager
    def removed(self) -> Iterator[None]:
        """The context for forward, loss and backward."""
        with self._no_dropout, self._draws, self._upcast if self._exact else nullcontext():
            yield

    def allowed(self) -> AbstractContextManager[None]:
        """A context within `removed` in which random numbers are real, for reading samples."""
        return self._draws.paused()

    def disable_dropout(self, module: nn.Module) -> None:
        """Set the dropout probability of the module and its submodules to 0."""
        self._dropout_modules += disable_dropout(module)

    @contextmanager
    def watch_draws(self) -> Iterator[None]:
        """A context that notices random numbers that could not be replaced."""
        before = torch.get_rng_state()
        yield
        self._unknown_draws = self._unknown_draws or not torch.equal(before, torch.get_rng_state())

    @property
    def has_dropout(self) -> bool:
        """True if dropout was switched off on this rank."""
        return self._dropout_modules > 0 or self._no_dropout.triggered

    @property
    def notes(self) -> list[str]:
        """What was switched off on this rank."""
        notes = []
        if self.has_dropout:
            notes.append("dropout was switched off: its masks differ between plans by design")
        if self._draws.triggered:
            notes.append(
                "random numbers that the model draws in forward were replaced by constants: they differ between plans "
                "by design"
            )
        if self._upcast.triggered:
            notes.append(
                "what the model casts to float32 was computed in float64, so that rounding does not hide a difference"
            )
        if self._unknown_draws:
            notes.append(
                "the model draws random numbers in forward that could not be replaced; they differ between plans, and "
                "so do results"
            )
        return notes

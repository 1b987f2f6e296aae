"""Parameters of a model that are not trained."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from onecurve.describe.errors import OnecurveError
from onecurve.job.optimizer import matches


@dataclass(frozen=True)
class FrozenModel:
    """Builds a model, and freezes the parameters whose names match a pattern."""

    build: Callable[[], nn.Module]
    pattern: str

    def __call__(self) -> nn.Module:
        model = self.build()
        if not isinstance(model, nn.Module):  # whoever calls this says so
            return model
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        for alternative in self.pattern.split("|"):
            if not any(matches(name, alternative) for name in names):
                raise OnecurveError(
                    f"Job: freeze: {alternative!r} matches no parameter of the model; its names are like "
                    f"{', '.join(names[:3])}"
                )
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if matches(name, self.pattern):
                parameter.requires_grad_(False)
        return model

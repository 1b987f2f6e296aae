"""The fingerprint of a job: the fields that its loss curve depends on, as texts that can be compared and shown."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import xxhash
from torch import nn

from onecurve.data.training_data import TrainingData
from onecurve.describe.errors import OnecurveError
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer
from onecurve.job.schedule import Schedule


def fingerprint(job: Job, model: nn.Module, data: TrainingData) -> dict[str, str]:
    """Return the fingerprint, field by field. Of functions only the name is known, not what they compute."""
    optimizers = [
        f"{name}: {_optimizer(factory)}" if name else _optimizer(factory) for name, factory in job.optimizers.items()
    ]
    return {
        "model": _model(model),
        "loss": _name(job.loss),
        "data": f"{data.order.size:,} samples",
        "optimizer": ", ".join(optimizers),
        "schedule": str(job.schedule) if isinstance(job.schedule, Schedule) else _name(job.schedule),
        "global_batch": str(job.global_batch),
        "steps": str(data.steps),
        "clip": str(job.clip),
        "batch_norm": job.batch_norm,
        "seed": str(job.seed),
    }


def refuse_changed(saved: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    """Refuse to continue a checkpoint that another job saved; name the fields that differ."""
    changed = [name for name in now if saved.get(name) != now[name]]
    if changed:
        details = "; ".join(f"{name} was {saved.get(name, 'not known')}, is {now[name]}" for name in changed)
        raise OnecurveError(
            f"{where}: it was saved by a job that differs in {', '.join(changed)} ({details}); restore the old values, "
            "give another --out, or add --fresh to start over and remove what is there"
        )


def _model(model: nn.Module) -> str:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    text = "\n".join(f"{name} {tuple(tensor.shape)} {tensor.requires_grad}" for name, tensor in tensors)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shapes = xxhash.xxh3_64_hexdigest(text.encode())[:8]
    return f"{type(model).__name__}, {parameters:,} parameters, names and shapes {shapes}"


def _optimizer(factory: Callable[..., Any]) -> str:
    if not isinstance(factory, Optimizer):
        return _name(factory)
    groups = {pattern: dict(settings) for pattern, settings in factory.groups.items()}
    return f"{factory.kind.__name__}({_settings(factory.settings)}{f', groups={groups}' if groups else ''})"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _name(function: Any) -> str:
    if isinstance(function, partial):
        return _name(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))

"""The fingerprint of a job: the fields that its loss curve depends on, as texts that can be compared and shown."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn

from onecurve.checkpoint.pretrained import weights_digest
from onecurve.data.training_data import TrainingData
from onecurve.describe.seed import mix
from onecurve.device.rng import seeded
from onecurve.job.embedding import tables_of
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer, OptimizerFactory
from onecurve.job.schedule import Schedule
from onecurve.job.staleness import Staleness
from onecurve.job.whole_batch import WholeBatchLoss
from onecurve.model.adapters import has_adapters

_log = logging.getLogger(__name__)


def fingerprint(job: Job, model: nn.Module, data: TrainingData) -> dict[str, str]:
    """Return the fingerprint, field by field. Of functions only the name is known, not what they compute."""
    optimizers, rates = [], []
    for name, factory in job.optimizers.items():
        label = f"{name}: " if name else ""
        optimizers.append(label + _optimizer(factory))
        rates.append(label + _learning_rates(factory, _trained(model, name)))
    return {
        "model": _model(model),
        "loss": _name(job.loss),
        "data": data.order.text,
        "optimizer": ", ".join(optimizers),
        "lr": ", ".join(rates),
        "schedule": str(job.schedule) if isinstance(job.schedule, Schedule) else _name(job.schedule),
        "global_batch": str(job.global_batch),
        "steps": str(job.steps) if job.epochs is None else _epochs(job.epochs),
        "clip": str(job.clip),
        "batch_norm": job.batch_norm,
        "buffers": str(job.buffers),
        "seed": str(job.seed),
        **({"ema": str(job.ema)} if job.ema is not None else {}),
        **({"base": _base(job)} if has_adapters(model) else {}),
        **({"tables": tables} if (tables := _tables(model, job.staleness)) else {}),
    }


def _base(job: Job) -> str:
    """The weights of the base of a model with adapters, which checkpoints do not have."""
    return weights_digest(Path(job.weights)) if job.weights is not None else "built by the model"


def _tables(model: nn.Module, staleness: Staleness) -> str:
    """The embedding tables, which are not among the model's tensors; empty if there are none."""
    tables = [
        f"{name}: {table.width} {table.optimizer}{table.limits}" for name, table in sorted(tables_of(model).items())
    ]
    if tables and staleness.steps:
        tables.append(
            f"staleness {staleness.steps} after {staleness.warmup} steps on {staleness.warmup_data:g} of the data"
        )
    return ", ".join(tables)


def _model(model: nn.Module) -> str:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    text = "\n".join(f"{name} {tuple(tensor.shape)} {tensor.requires_grad}" for name, tensor in tensors)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shapes = xxhash.xxh3_64_hexdigest(text.encode())[:8]
    return f"{type(model).__name__}, {parameters:,} parameters, names and shapes {shapes}"


def _optimizer(factory: OptimizerFactory) -> str:
    """An optimizer without its learning rate."""
    if not isinstance(factory, Optimizer):
        return _name(factory)
    # Rprop uses its learning rate in the first step only: continuing with another one would have no effect.
    hidden = () if factory.kind is torch.optim.Rprop else ("lr",)
    settings = {name: value for name, value in factory.settings.items() if name not in hidden}
    groups = {
        pattern: {name: value for name, value in own.items() if name not in hidden}
        for pattern, own in factory.groups.items()
    }
    words = [f"{name}={value}" for name, value in {**settings, **({"groups": groups} if groups else {})}.items()]
    return f"{factory.kind.__name__}({', '.join(words)})"


def _trained(model: nn.Module, child: str) -> list[tuple[str, nn.Parameter]]:
    prefix = f"{child}." if child else ""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad and name.startswith(prefix)]


def _learning_rates(factory: OptimizerFactory, parameters: list[tuple[str, nn.Parameter]]) -> str:
    """The learning rate, or that of each parameter group if they differ."""
    try:
        with seeded(mix(0)):
            rates = [str(float(group["lr"])) for group in factory(parameters).param_groups]
    except Exception:  # user code that needs real parameters; its rate is then not compared
        _log.info("the optimizer cannot be built on fake parameters", exc_info=True)
        return "not known"
    return rates[0] if len(set(rates)) == 1 else ", ".join(rates)


def _epochs(epochs: float) -> str:
    number = str(float(epochs)).removesuffix(".0")
    return "1 epoch" if number == "1" else f"{number} epochs"


def _name(function: Any) -> str:
    if isinstance(function, partial):
        return _name(function.func)
    if isinstance(function, WholeBatchLoss):
        return function.name
    return str(getattr(function, "__qualname__", type(function).__qualname__))

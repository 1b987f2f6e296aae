"""The jobs of mutants.py. While check compares a list of plans, the one with number n is trained with fault n.

A fault changes what one parameter, or the module that holds it, computes under the plan; the one-device run that it is
compared with has none.
"""

import json
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.runtime.assembly import Assembly
from onecurve.verbs import check_worker, plan_checker

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

_SMALL = 1e-3


class Fault:
    """What a fault may change: one rank's part of the model, and one of the model's parameters."""

    def __init__(self, assembly: Assembly, target: str, is_last: bool) -> None:
        """`is_last`: no later rank holds the same parameters."""
        self.part, self.trainer, self.is_last = assembly.part, assembly.trainer, is_last
        self.held = [tensor for tensor in assembly.part.trainable if tensor.name == target]
        """The parameter, if this rank holds a part of it."""
        parents = {id(p): module for module in assembly.part.module.modules() for p in module.parameters(recurse=False)}
        self.modules = [parents[id(tensor.registered)] for tensor in self.held]

    def after_backward(self, change: Callable[[Tensor], Any]) -> None:
        original = self.part.run_rounds

        def run_rounds(*arguments: Any) -> Tensor:
            totals = original(*arguments)
            for tensor in self.held:
                if tensor.local.grad is not None:
                    change(tensor.local.grad)
            return totals

        self.part.run_rounds = run_rounds  # type: ignore[method-assign]

    def after_update(self, change: Callable[[Tensor, Tensor], Any]) -> None:
        original = self.trainer.update.apply

        def apply(*arguments: Any) -> Any:
            before = [tensor.local.detach().clone() for tensor in self.held]
            skipped = original(*arguments)
            with torch.no_grad():
                for tensor, old in zip(self.held, before, strict=True):
                    change(tensor.local, old)
            return skipped

        self.trainer.update.apply = apply  # type: ignore[method-assign]

    def in_outputs(self, change: Callable[[Tensor], Tensor]) -> None:
        for module in self.modules if self.is_last else []:
            module.register_forward_hook(lambda _, __, output: change(output) if output.requires_grad else output)


def gradient_scaled(fault: Fault) -> None:
    """its gradient is 1 % too large"""
    fault.after_backward(lambda gradient: gradient.mul_(1.01))


def gradient_lost(fault: Fault) -> None:
    """its gradient is lost"""
    fault.after_backward(lambda gradient: gradient.zero_())


def gradient_of_half(fault: Fault) -> None:
    """the second half of its gradient is lost"""
    fault.after_backward(lambda gradient: gradient.view(-1)[gradient.numel() // 2 :].zero_())


def gradient_reversed(fault: Fault) -> None:
    """the elements of its gradient are in the reverse order"""
    fault.after_backward(lambda gradient: gradient.copy_(gradient.reshape(-1).flip(0).view_as(gradient)))


def not_updated(fault: Fault) -> None:
    """it is not updated"""
    fault.after_update(lambda new, old: new.copy_(old))


def updated_too_much(fault: Fault) -> None:
    """its update is 1 % too large"""
    fault.after_update(lambda new, old: new.add_(0.01 * (new - old)))


def other_initial_weight(fault: Fault) -> None:
    """its initial value is slightly different"""
    with torch.no_grad():
        for tensor in fault.held:
            tensor.local.view(-1)[:1] += _SMALL
    fault.part.drop_gathered()


def output_shifted(fault: Fault) -> None:
    """the output of its module is slightly different on one rank"""
    fault.in_outputs(lambda output: output * (1 + _SMALL * torch.linspace(0, 1, output.shape[-1], dtype=output.dtype)))


def backward_scaled(fault: Fault) -> None:
    """the gradient that its module passes on is 1 % too large on one rank"""
    fault.in_outputs(lambda output: 1.01 * output - 0.01 * output.detach())


FAULTS: dict[str, Callable[[Fault], None]] = {
    function.__name__: function
    for function in (
        gradient_scaled,
        gradient_lost,
        gradient_of_half,
        gradient_reversed,
        not_updated,
        updated_too_much,
        other_initial_weight,
        output_shifted,
        backward_scaled,
    )
}


class Branches(nn.Module):
    """Residual blocks as in diffusion transformers: the head, and if wished the end of each branch, begins with 0."""

    def __init__(self, width: int = 8, zero_branches: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(_Branch(width, zero_branches) for _ in range(2))
        self.head = nn.Linear(width, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _Branch(nn.Module):
    def __init__(self, width: int, is_zero: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        if is_zero:
            nn.init.zeros_(self.down.weight)
            nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Points:
    """64 points in three classes."""

    def __init__(self) -> None:
        self.x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], index % 3


def _points_job(model: Callable[[], nn.Module]) -> oc.Job:
    return oc.Job(
        model=model,
        loss=oc.loss.cross_entropy,
        data=Points,
        optimizer=oc.AdamW(lr=0.01, weight_decay=0.1),
        clip=1.0,
        global_batch=8,
        steps=4,
    )


def _gpt() -> oc.Job:
    import gpt

    return gpt.job(width=16, context=16, batch=8)


def _resnet() -> oc.Job:
    import resnet

    return resnet.job(width=2, batch=8, clip=0.1)


def _lora(folder: str) -> oc.Job:
    import lora

    return lora.job(folder=folder, rank=2, context=8, batch=8)


def _with_fault(assemble: Callable[..., Assembly], number: list[int]) -> Callable[..., Any]:
    @wraps(assemble)
    def faulty(job: oc.Job, resolved: Any, mesh: Any, device: Any, data: Any, deferred: Any, **rest: Any) -> Assembly:
        kind, target = _faults[number[0]]
        assembly = assemble(job, resolved, mesh, device, data, deferred, **rest)
        if kind:
            degrees = resolved.plan.mesh
            FAULTS[kind](Fault(assembly, target, degrees.pipeline > 1 or mesh.rank == degrees.size - 1))
        return assembly

    return faulty


def _install() -> None:
    """Count the plans that check compares. After a rank has died, it continues behind the plan that ended it."""
    number = [-1]
    remaining, check = check_worker._check_remaining, plan_checker.PlanChecker.check

    def check_remaining(checker: Any, journal: Any, *rest: Any) -> None:
        number[0] = len(journal.verdicts) - 1
        remaining(checker, journal, *rest)

    def check_next(self: Any, resolved: Any) -> Any:
        number[0] += 1
        return check(self, resolved)

    check_worker._check_remaining = check_remaining
    plan_checker.PlanChecker.check = check_next  # type: ignore[method-assign]
    plan_checker.assemble = _with_fault(plan_checker.assemble, number)


JOBS: dict[str, Callable[..., oc.Job]] = {
    "gpt": _gpt,
    "resnet": _resnet,
    "zero_head": partial(_points_job, Branches),
    "zero_branches": partial(_points_job, partial(Branches, zero_branches=True)),
    "lora": _lora,
}
_faults: list[list[str]] = []
"""[kind, parameter] of each plan of the check under way. Plans of one rank are checked in the caller's process, which
does one check after the other."""


def job(model: str, faults: str = "[]", folder: str = "") -> oc.Job:
    """`faults`: a JSON list with [kind, parameter] for each plan; an empty kind for none."""
    if faults != "[]":
        if not _faults:
            _install()
        _faults[:] = json.loads(faults)
    return JOBS[model](folder) if model == "lora" else JOBS[model]()

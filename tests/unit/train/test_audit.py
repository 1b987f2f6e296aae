"""An audit on one rank finds a fault, changes nothing, and knows what it cannot compare. The run is a real one."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.describe.errors import FaultyRankError

torch.set_num_threads(1)


class Counting(nn.Module):
    """Its forward changes a number, a list, a generator of its own, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.head = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.calls, self.seen, self.generator = 0, [0], torch.Generator().manual_seed(5)
        self.spoil: Callable[[Tensor], Tensor] = lambda gradient: gradient

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.calls += 1
            self.seen.append(self.calls)
        noise = torch.rand(8, generator=self.generator) / (1 + self.calls + len(self.seen))
        y = self.norm(self.linear(x)) + noise
        if y.requires_grad:
            y.register_hook(lambda gradient: self.spoil(gradient))
        return self.head(torch.tanh(y))


class Points:
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.tensor([index / 7, index / 3, 1.0])
        return x, x.sum()[None]


def job(audit: int | None, model: Callable[[], nn.Module] = Counting) -> oc.Job:
    return oc.Job(
        model=model,
        data=Points,
        loss=oc.loss.mse,
        optimizer=oc.SGD(lr=0.01),
        global_batch=8,
        steps=12,
        audit=audit,
        workers=0,
    )


def trained(audit: int | None) -> list[Tensor]:
    with oc.prepare(job(audit), plan="mb4×2") as run:
        for batch in run:
            run.step(batch)
        assert run.components.trainer.audit is None or run.components.trainer.audit._last_equal == 12
        return [value.clone() for value in run.model.state_dict().values()]


def test_an_audited_run_trains_the_same_bits() -> None:
    assert all(map(torch.equal, trained(3), trained(None)))


def test_a_fault_ends_the_run_before_the_update() -> None:
    passes = iter(range(9))
    text = r"step 8: the gradient of 'norm.weight' .* rank 0 on .* all ranks agreed: step 4"
    with oc.prepare(job(4), plan="mb8") as run:
        for batch in run:
            if batch.step < 8:
                run.step(batch)
                continue
            run.model.spoil = lambda gradient: gradient * (1 + 1e-6 * (next(passes) == 1))
            before = [parameter.clone() for parameter in run.model.parameters()]
            with pytest.raises(FaultyRankError, match=text):
                run.step(batch)
            assert all(map(torch.equal, before, run.model.parameters()))
            break


def test_a_model_without_seeds_turns_the_audit_off(capsys) -> None:
    class Noisy(Counting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * (1 + random.SystemRandom().random()))

    with oc.prepare(job(2, Noisy), plan="mb8") as run:
        for batch in run:
            run.step(batch)
        assert run.components.trainer.audit._is_off
    assert capsys.readouterr().err.count("the audit is off from now on") == 1


def test_a_forward_that_changes_a_parameter_is_refused() -> None:
    class Writing(Counting):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and torch.is_grad_enabled():
                self.head.bias.data += 0.1
            return super().forward(x)

    with oc.prepare(job(2, Writing), plan="mb8") as run:
        batch = next(iter(run))
        with pytest.raises(oc.OnecurveError, match=r"audit: forward changes 'head.bias' in place"):
            run.step(batch)

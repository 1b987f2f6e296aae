"""A rank's part of the model and its trainer, and the mistakes that are found before training."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import onecurve as oc
from onecurve.apply.process_mesh import ProcessMesh, make_mesh
from onecurve.apply.single_stage import SingleStagePart
from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.device.device import local_cpu
from onecurve.model.deferred import defer_init
from onecurve.model.recorder import build_real
from onecurve.runtime.assembly import (
    Assembly,
    ManualAssembly,
    assemble,
    assemble_manual,
    first_names,
    refuse_unmatched_groups,
)
from onecurve.train.step_flags import StepFlags


class Points:
    def __init__(self) -> None:
        self.x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.x[index].sum()[None]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.critic(self.generator(x))


def make_job(**changes: Any) -> oc.Job:
    settings = {
        "model": Pair,
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.05),
        "global_batch": 8,
        "steps": 4,
    }
    return oc.Job(**(settings | changes))


def one_rank() -> ProcessMesh:
    return make_mesh(Mesh(), 0, "cpu")


def assembled(job: oc.Job, plan: str = "mb8") -> Assembly:
    resolved = ResolvedPlan(Plan.parse(plan))
    return assemble(job, resolved, one_rank(), local_cpu(), open_data(job), defer_init(job.model, job.seed))


def assembled_manual(job: oc.Job) -> ManualAssembly:
    flags = StepFlags(stop=lambda: False, save=lambda: False)
    deferred = defer_init(job.model, job.seed)
    return assemble_manual(job, Plan.parse("mb8"), one_rank(), local_cpu(), open_data(job), deferred, flags)


def test_the_part_holds_the_initial_weights_of_the_seed() -> None:
    assembly = assembled(make_job(seed=3))
    assert isinstance(assembly.part, SingleStagePart)
    expected = build_real(Pair, 3).state_dict()
    actual = assembly.part.module.state_dict()
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert not isinstance(actual[name], FakeTensor)
        assert torch.equal(actual[name], tensor), name


def test_fp64_converts_the_model_and_a_loss_with_parameters() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return ((output - target) * self.scale).square().mean(1)

    loss = Scaled()
    assembly = assembled(make_job(loss=loss), "mb8 fp64")
    assert assembly.part.module.critic.weight.dtype == torch.float64
    assert loss.scale.dtype == torch.float64


def test_a_scalar_loss_that_is_no_mean_over_samples_is_refused() -> None:
    def root_mean_square(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean().sqrt()

    with pytest.raises(OnecurveError, match="not a mean over samples"):
        assembled(make_job(loss=root_mean_square))
    assembled(make_job(loss=nn.MSELoss()))  # a mean over samples is accepted


def test_an_error_in_a_metric_shows_before_training() -> None:
    def broken(output: Tensor, _: Tensor) -> Tensor:
        return output.no_such_thing

    with pytest.raises(UserCodeError, match="metric 'broken': it raised AttributeError"):
        assembled(make_job(metrics={"broken": broken}))


def test_a_pattern_that_matches_no_parameter_is_refused() -> None:
    job = make_job(optimizer=oc.AdamW(lr=0.1, groups={"*.bias": {"lr": 0.2}, "*norm*": {"weight_decay": 0.0}}))
    with pytest.raises(OnecurveError, match=r"'\*norm\*' matches no trained parameter.*generator\.weight"):
        refuse_unmatched_groups(job, defer_init(job.model, 0))


def test_patterns_are_matched_within_the_child_of_the_optimizer() -> None:
    groups = {"critic.bias": {"lr": 0.2}}
    job = make_job(optimizer={"generator": oc.SGD(lr=0.1), "critic": oc.SGD(lr=0.1, groups=groups)})
    refuse_unmatched_groups(job, defer_init(job.model, 0))
    job = make_job(optimizer={"generator": oc.SGD(lr=0.1, groups=groups), "critic": oc.SGD(lr=0.1)})
    with pytest.raises(OnecurveError, match=r"'critic\.bias' matches no trained parameter"):
        refuse_unmatched_groups(job, defer_init(job.model, 0))


def test_a_manual_assembly_has_one_update_per_optimizer() -> None:
    job = make_job(optimizer={"generator": oc.SGD(lr=0.1), "critic": oc.AdamW(lr=0.2)})
    assembly = assembled_manual(job)
    assert set(assembly.trainer.updates) == {"generator", "critic"}
    assert isinstance(assembly.trainer.updates["critic"].optimizer, torch.optim.AdamW)


def test_an_optimizer_for_a_child_that_does_not_exist_is_refused() -> None:
    job = make_job(optimizer={"generator": oc.SGD(lr=0.1), "discriminator": oc.SGD(lr=0.1)})
    with pytest.raises(OnecurveError, match=r"no child 'discriminator' \(it has: generator, critic\)"):
        assembled_manual(job)


def test_tied_tensors_have_one_first_name() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(4, 3), "head": nn.Linear(3, 4), "norm": nn.BatchNorm1d(3)})
    model["head"].weight = model["words"].weight
    names = first_names(model)
    assert names["head.weight"] == names["words.weight"] == "words.weight"
    assert names["head.bias"] == "head.bias"
    assert names["norm.running_mean"] == "norm.running_mean"

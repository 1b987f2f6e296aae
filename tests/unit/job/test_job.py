from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.describe.errors import OnecurveError
from onecurve.job.script import load_job, read_arguments


def make(**changes) -> oc.Job:
    settings = {
        "model": nn.Identity, "loss": oc.loss.mse, "data": list, "optimizer": oc.SGD(), "global_batch": 4, "steps": 2,
    }  # fmt: skip
    return oc.Job(**(settings | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch": 0}, "global_batch must be an integer of at least 1, got 0"),
        ({"global_batch": 2.5}, "must be an integer of at least 1, got 2.5"),
        ({"steps": None}, "either steps=… or epochs=…, got neither"),
        ({"epochs": 2}, "either steps=… or epochs=…, got both"),
        ({"steps": None, "epochs": 0}, "epochs must be above 0, got 0"),
        ({"clip": 0.0}, "a gradient norm above 0.*got 0.0"),
        ({"clip": "1.0"}, "clip must be a gradient norm above 0.*got '1.0'"),
        ({"schedule": "cosine"}, "schedule must be onecurve.cosine"),
        ({"schedule": lambda _: 1.0}, r"factor\(step, steps\)"),
        ({"metrics": [oc.metric.top1]}, "metrics must be a dict.*got list"),
        ({"evaluate": list}, "must be a onecurve.Evaluate"),
        ({"evaluate": oc.Evaluate(list, every=1, watch="los")}, "did you mean 'loss'"),
        ({"buffers": "sum"}, "must be 'average' or None, got 'sum'"),
        ({"batch_norm": "global"}, "must be 'sync' or 'local', got 'global'"),
        ({"model": nn.Linear(2, 2)}, "must be a callable that builds the module"),
        ({"data": [1, 2]}, "data=lambda"),
        ({"optimizer": 0.1}, "onecurve.AdamW"),
    ],
)
def test_an_invalid_job_names_the_value_and_the_fix(changes, message: str) -> None:
    with pytest.raises(OnecurveError, match=message):
        make(**changes)


def test_epochs_are_rounded_up_to_full_steps() -> None:
    job = make(steps=None, epochs=2)
    assert job.total_steps(10) == 5
    assert job.total_steps(11) == 6
    assert job.total_steps(1) == 1


def test_schedule_factors() -> None:
    cosine = oc.cosine(warmup=2, final=0.1)
    assert [cosine.factor(step, 7) for step in (0, 1, 2, 4, 6)] == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1])
    linear = oc.linear(final=0.2)
    assert [linear.factor(step, 5) for step in range(5)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert [oc.constant(warmup=4).factor(step, 9) for step in (0, 3, 8)] == [0.25, 1.0, 1.0]
    assert make(schedule=lambda step, steps: step / steps).lr_factor(1, 2) == 0.5


def test_learning_rate_scaling() -> None:
    assert oc.linear_scaling(0.1, 1024) == pytest.approx(0.4)
    assert oc.sqrt_scaling(0.1, 1024) == pytest.approx(0.2)
    assert oc.linear_scaling(0.1, 64, base=32) == pytest.approx(0.2)


def test_a_parameter_uses_the_first_group_that_matches() -> None:
    module = nn.ModuleDict({"norm": nn.LayerNorm(2), "out": nn.Linear(2, 2)})
    groups = {"norm.*|*.bias": {"weight_decay": 0.0}, "out.*": {"lr": 5.0}}
    optimizer = oc.AdamW(lr=1.0, weight_decay=0.1, groups=groups)(module.named_parameters())
    settings = {id(p): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert settings[id(module.norm.weight)] == (1.0, 0.0)
    assert settings[id(module.out.bias)] == (1.0, 0.0)
    assert settings[id(module.out.weight)] == (5.0, 0.1)


def test_a_group_that_matches_nothing_is_refused() -> None:
    with pytest.raises(OnecurveError, match="matches no trained parameter; the first names are weight, bias"):
        oc.SGD(groups={"nrm.*": {"lr": 1.0}}).refuse_unmatched(["weight", "bias"])


def test_a_group_may_have_no_parameter_on_this_rank() -> None:
    optimizer = oc.SGD(groups={"nrm.*": {"lr": 1.0}})(nn.Linear(2, 2).named_parameters())
    assert len(optimizer.param_groups) == 1


def test_an_unknown_setting_suggests_the_nearest_known_one() -> None:
    with pytest.raises(OnecurveError, match="did you mean 'weight_decay'"):
        oc.Optimizer(torch.optim.RMSprop, {"weight_decy": 0.1})


def test_losses_per_sample_and_per_token() -> None:
    logits, target = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    target[0, 2:] = -100
    weighted = oc.loss.next_token(logits, target)
    assert int(weighted.count) == 10
    plain = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    assert (weighted.sum / weighted.count).item() == pytest.approx(plain.item())
    assert oc.loss.cross_entropy(logits[:, 0], target[:, 0]).shape == (3,)
    assert oc.loss.mse(logits, logits + 2).tolist() == pytest.approx([4.0] * 3)


def test_mse_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(OnecurveError, match=r"got output \[4, 1\] and target \[4\]"):
        oc.loss.mse(torch.zeros(4, 1), torch.zeros(4))
    assert oc.loss.mse(torch.zeros(4), torch.ones(4)).tolist() == [1.0] * 4


def arguments_of(
    lr: float = 0.1, deep: bool = False, name: str = "x", mode: Literal["a", "b"] = "a", size: int | None = None, n=3
) -> None: ...


def test_arguments_are_converted_to_their_annotated_types() -> None:
    arguments = ["lr=1e-4", "deep=true", "name=a=b", "mode=b", "size=7", "n=4"]
    expected = {"lr": 1e-4, "deep": True, "name": "a=b", "mode": "b", "size": 7, "n": 4}
    assert read_arguments(arguments_of, arguments, "train.py") == expected


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("lrr=1", "did you mean 'lr'"),
        ("lr", "as name=value"),
        ("lr=fast", "'fast' cannot be read as float"),
        ("mode=c", "cannot be read"),
    ],
)
def test_invalid_arguments_are_refused(argument: str, message: str) -> None:
    with pytest.raises(OnecurveError, match=message):
        read_arguments(arguments_of, [argument], "train.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no function 'job'"),
        ("job = 1", "must be a function"),
        ("def job(): return 1", "must return a onecurve.Job, got int"),
        ("def job(path): return 1", "requires the argument 'path'"),
        ("import nowhere", "importing it raised ModuleNotFoundError"),
        ("def job(): 1/0", r"job\(\) raised ZeroDivisionError"),
    ],
)
def test_invalid_scripts_are_refused(text: str, message: str, tmp_path) -> None:
    script = tmp_path / "train_wrong.py"
    script.write_text(text)
    with pytest.raises(OnecurveError, match=message):
        load_job(script)


def test_a_folder_is_not_a_script(tmp_path) -> None:
    with pytest.raises(OnecurveError, match="it is a folder"):
        load_job(tmp_path)


def test_frozen_parameters_are_not_trained() -> None:
    job = make(model=lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), freeze="0.*|*.bias")
    for _ in range(2):
        trained = [name for name, parameter in job.model().named_parameters() if parameter.requires_grad]
        assert trained == ["1.weight"]
        job = replace(job, steps=3)  # what is changed later stays frozen
    with pytest.raises(
        OnecurveError, match=r"freeze: 'head.\*' matches no parameter of the model; its names are like weight, bias"
    ):
        make(model=lambda: nn.Linear(2, 2), freeze="head.*").model()
    with pytest.raises(OnecurveError, match="freeze must be a pattern"):
        make(freeze="")
    with pytest.raises(OnecurveError, match="ema must be the decay of an average"):
        make(ema=1.5)


def test_top1_is_for_one_class_per_sample() -> None:
    assert oc.metric.top1(torch.eye(3), torch.tensor([0, 1, 1])).sum == 2
    with pytest.raises(OnecurveError, match="it takes logits of shape"):
        oc.metric.top1(torch.zeros(2, 4, 3), torch.zeros(2, 4))

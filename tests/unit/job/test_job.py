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
    ("changes", "says"),
    [
        ({"global_batch": 0}, "global_batch = 0"),
        ({"global_batch": 2.5}, "whole number"),
        ({"steps": None}, "either steps=… or epochs=…"),
        ({"epochs": 2}, "either steps=… or epochs=…"),
        ({"steps": None, "epochs": 0}, "above 0"),
        ({"clip": 0.0}, "a norm above 0"),
        ({"clip": "1.0"}, "clip = '1.0'"),
        ({"schedule": "cosine"}, "give onecurve.cosine"),
        ({"schedule": lambda _: 1.0}, r"factor\(step, steps\)"),
        ({"metrics": [oc.metric.top1]}, "metrics needs names"),
        ({"evaluate": list}, "needs an onecurve.Evaluate"),
        ({"evaluate": oc.Evaluate(list, every=1, watch="los")}, "did you mean 'loss'"),
        ({"batch_norm": "global"}, "known: 'sync', 'local'"),
        ({"model": nn.Linear(2, 2)}, "give the callable that builds it"),
        ({"data": [1, 2]}, "data=lambda"),
        ({"optimizer": 0.1}, "onecurve.AdamW"),
    ],
)
def test_a_wrong_job_says_the_mend(changes, says: str) -> None:
    with pytest.raises(OnecurveError, match=says):
        make(**changes)


def test_epochs_round_up_to_whole_steps() -> None:
    made = make(steps=None, epochs=2)
    assert made.total_steps(10) == 5
    assert made.total_steps(11) == 6
    assert made.total_steps(1) == 1


def test_schedules() -> None:
    cosine = oc.cosine(warmup=2, final=0.1)
    assert [cosine.factor(step, 7) for step in (0, 1, 2, 4, 6)] == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1])
    linear = oc.linear(final=0.2)
    assert [linear.factor(step, 5) for step in range(5)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert [oc.constant(warmup=4).factor(step, 9) for step in (0, 3, 8)] == [0.25, 1.0, 1.0]
    assert make(schedule=lambda step, steps: step / steps).rate(1, 2) == 0.5


def test_scaling_rules() -> None:
    assert oc.linear_scaling(0.1, 1024) == pytest.approx(0.4)
    assert oc.sqrt_scaling(0.1, 1024) == pytest.approx(0.2)
    assert oc.linear_scaling(0.1, 64, base=32) == pytest.approx(0.2)


def test_groups_take_the_first_pattern_that_matches() -> None:
    module = nn.ModuleDict({"norm": nn.LayerNorm(2), "out": nn.Linear(2, 2)})
    groups = {"norm.*|*.bias": {"weight_decay": 0.0}, "out.*": {"lr": 5.0}}
    optimizer = oc.AdamW(lr=1.0, weight_decay=0.1, groups=groups)(module.named_parameters())
    found = {id(p): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert found[id(module.norm.weight)] == (1.0, 0.0)
    assert found[id(module.out.bias)] == (1.0, 0.0)
    assert found[id(module.out.weight)] == (5.0, 0.1)


def test_a_group_that_matches_nothing_is_refused() -> None:
    with pytest.raises(OnecurveError, match="matches no trained parameter; the first names are weight, bias"):
        oc.SGD(groups={"nrm.*": {"lr": 1.0}}).refuse_unmatched(["weight", "bias"])


def test_a_group_may_have_no_parameter_on_this_rank() -> None:
    optimizer = oc.SGD(groups={"nrm.*": {"lr": 1.0}})(nn.Linear(2, 2).named_parameters())
    assert len(optimizer.param_groups) == 1


def test_an_unknown_setting_names_the_nearest() -> None:
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
    with pytest.raises(OnecurveError, match=r"\[4, 1\], the target \[4\]"):
        oc.loss.mse(torch.zeros(4, 1), torch.zeros(4))
    assert oc.loss.mse(torch.zeros(4), torch.ones(4)).tolist() == [1.0] * 4


def arguments_of(
    lr: float = 0.1, deep: bool = False, name: str = "x", mode: Literal["a", "b"] = "a", size: int | None = None, n=3
) -> None: ...


def test_arguments_are_typed_by_their_annotations() -> None:
    words = ["lr=1e-4", "deep=true", "name=a=b", "mode=b", "size=7", "n=4"]
    expected = {"lr": 1e-4, "deep": True, "name": "a=b", "mode": "b", "size": 7, "n": 4}
    assert read_arguments(arguments_of, words, "train.py") == expected


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("lrr=1", "did you mean 'lr'"),
        ("lr", "written name=value"),
        ("lr=fast", "'fast' cannot be read as float"),
        ("mode=c", "cannot be read"),
    ],
)
def test_wrong_arguments(word: str, says: str) -> None:
    with pytest.raises(OnecurveError, match=says):
        read_arguments(arguments_of, [word], "train.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "no function 'job'"),
        ("job = 1", "must be a function"),
        ("def job(): return 1", "must return an onecurve.Job"),
        ("def job(path): return 1", "needs 'path'"),
        ("import nowhere", "importing it raised ModuleNotFoundError"),
        ("def job(): 1/0", r"job\(\) raised ZeroDivisionError"),
    ],
)
def test_wrong_scripts(text: str, says: str, tmp_path) -> None:
    script = tmp_path / "train_wrong.py"
    script.write_text(text)
    with pytest.raises(OnecurveError, match=says):
        load_job(script)


def test_no_script(tmp_path) -> None:
    with pytest.raises(OnecurveError, match="it is a folder"):
        load_job(tmp_path)

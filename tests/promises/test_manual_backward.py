"""oc.prepare(job, backward="mine"): a correct loop computes the same gradients and updates under every plan."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import onecurve as oc
from harness import EXAMPLES, onecurve, python, torchrun
from onecurve.describe.errors import OnecurveError

GAN = EXAMPLES / "gan.py"


def train(plan: str, ranks: int, out: Path) -> dict[str, torch.Tensor]:
    arguments = (str(GAN), "steps=4", "batch=8", f"plan={plan}", f"out={out}")
    done = torchrun(ranks, *arguments) if ranks > 1 else python(*arguments)
    assert done.returncode == 0, done.stderr
    assert "depends on your loop" in done.stderr
    return load_file(out)


@pytest.mark.parametrize(
    "plans",
    [
        ["shard2 mb2×2 fp64"],
        pytest.param(["replicate2 mb(5,3) fp64", "shard2 mb4 zero2 fp64"], marks=pytest.mark.slow),
    ],
    ids=["shard", "others"],
)
def test_a_gan_trains_the_same_under_every_plan(tmp_path, plans: list[str]) -> None:
    one = train("mb8 fp64", 1, tmp_path / "one")
    for plan in plans:
        split = train(plan, 2, tmp_path / "split")
        assert split.keys() == one.keys()
        for name, weight in one.items():
            assert (split[name] - weight).abs().max() <= 1e-12, (plan, name)


def test_check_refuses_a_job_with_several_optimizers(tmp_path) -> None:
    done = onecurve("check", str(GAN), "--ranks", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "not checkable: it has several optimizers" in done.stderr
    assert "Traceback" not in done.stderr


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(2, 1)
        self.b = torch.nn.Linear(2, 1)


def job(**changes: object) -> oc.Job:
    settings = {"optimizer": {"a": oc.SGD(lr=0.5), "b": oc.SGD(lr=0.5)}, "steps": 3, **changes}
    return oc.Job(model=Pair, data=lambda: [(torch.ones(2), 0.0)] * 8, global_batch=4, **settings)


def test_gradients_of_one_update_do_not_leak_into_the_next() -> None:
    with oc.prepare(job(), backward="mine") as run:
        x = next(iter(run)).rounds[0].inputs
        run.backward((run.model.a(x) + run.model.b(x)).squeeze(1))
        run.update("a")
        before = run.model.b.bias.item()
        run.backward(run.model.b(x).squeeze(1))
        report = run.update("b")
        assert run.model.b.bias.item() == pytest.approx(before - 0.5)  # the gradient of one loss, not of two
        assert report.outcome.count == 4


def test_misuse_is_reported() -> None:
    with oc.prepare(job(), backward="mine") as run:
        x = next(iter(run)).rounds[0].inputs
        with pytest.raises(OnecurveError, match="does not say over how many samples"):
            run.backward(run.model.a(x).mean())
        run.backward(run.model.a(x).squeeze(1))
        run.update("a")
        with pytest.raises(OnecurveError, match=r"call run\.backward first"):
            run.update("a")
        with pytest.raises(OnecurveError, match="no optimizer is named 'c'"):
            run.update("c")
    with pytest.raises(OnecurveError, match=r"'b\.weight' belongs to no optimizer"):
        oc.prepare(job(optimizer={"a": oc.SGD()}), backward="mine")
    with pytest.raises(OnecurveError, match="the model has no child 'x'"):
        oc.prepare(job(optimizer={"x": oc.SGD()}), backward="mine")
    with pytest.raises(OnecurveError, match="it has no loss"):
        oc.prepare(job(optimizer=oc.SGD()))

"""Predictions that are corrected by what a run has measured."""

from types import SimpleNamespace

import pytest

from diagnosed_run import rank_history, run_history, step_times
from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup, Link
from onecurve.describe.plan import Plan
from onecurve.diagnose.diagnosis import Prediction, diagnose
from onecurve.diagnose.measured_estimator import MeasuredEstimator, measured_groups
from onecurve.diagnose.plan_change import plan_change
from onecurve.estimate.estimator import Estimator

PLAN, OTHER = Plan.parse("replicate2 mb8 fp32"), Plan.parse("mb4×4 fp32")


class Predictor(Estimator):
    """Predicts the same seconds for every plan."""

    def __init__(self, **seconds: float) -> None:
        device = DeviceSpec(name="core", memory=10**9, memory_bandwidth=1e11, flops={"fp32": 1e9}, op_seconds=1e-7)
        hosts = HostGroup(device, count=2, inter_host=Link(1e-3, 1e7), rank_overhead_bytes=0.0)
        super().__init__(Cluster((hosts,)), SimpleNamespace(timings=()))  # type: ignore[arg-type]
        self._predicted = seconds

    def seconds(self, _: Plan) -> dict[str, float]:
        return dict(self._predicted)


def corrected(monkeypatch: pytest.MonkeyPatch, times, plan: Plan = PLAN, **predicted: float) -> dict[str, float]:
    """What is predicted for another plan, of which the predictor knows the same as for the run's own."""
    monkeypatch.setattr(Estimator, "seconds", lambda *_: dict(predicted))
    return MeasuredEstimator(Predictor(**predicted), PLAN, times).seconds(plan)


def test_the_prediction_for_the_runs_own_plan_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.04, "backward": 0.05, "update": 0.03, "data": 0.5}, {"replicate": 0.06})
    found = corrected(monkeypatch, times, forward=0.03, backward=0.03, update=0.01, replicate=0.01, data=0.1)
    assert found["forward"] + found["backward"] == pytest.approx(0.09)
    assert (found["update"], found["replicate"]) == (pytest.approx(0.03), pytest.approx(0.06))
    assert "data" not in found


def test_a_slow_link_is_slow_for_axes_that_were_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.06}, {"replicate": 0.06})
    found = corrected(
        monkeypatch,
        times,
        forward=0.05,
        replicate=0.02,
        shard=0.01,
        tensor=0.02,
        pipeline=0.03,
        bubble=0.05,
        tables=0.01,
    )
    assert (found["shard"], found["tensor"]) == (pytest.approx(0.03), pytest.approx(0.06))
    assert found["pipeline"] == pytest.approx(0.09)
    assert found["bubble"] == pytest.approx(0.06)  # stages wait for computing, which took 1.2 times as long
    assert found["tables"] == pytest.approx(0.01)


def test_a_measured_bubble_corrects_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.05}, bubble=0.08)
    found = corrected(monkeypatch, times, forward=0.05, bubble=0.03, pipeline=0.01)
    assert found["bubble"] + found["pipeline"] == pytest.approx(0.08)


def test_times_below_a_fiftieth_of_a_step_correct_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.09, "update": 0.001}, {"replicate": 0.009})
    found = corrected(monkeypatch, times, forward=0.09, update=0.0005, replicate=0.003)
    assert (found["update"], found["replicate"]) == (0.0005, pytest.approx(0.009))


def test_computing_that_is_not_explained_grows_with_the_samples_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of 16 samples took 0.2 s, where 0.05 s were predicted: 16 samples on one rank take 0.4 s."""
    times = step_times({"forward": 0.2})
    found = corrected(monkeypatch, times, plan=OTHER, forward=0.05, host=0.01, update=0.01)
    assert found["forward"] == pytest.approx(0.4)
    assert "host" not in found
    split = corrected(monkeypatch, times, plan=Plan.parse("tensor2 mb16 fp32"), forward=0.05)
    assert split["forward"] == pytest.approx(0.2)
    split = corrected(monkeypatch, times, plan=Plan.parse("pipeline2 mb8×4 fp32"), forward=0.05)
    assert split["forward"] == pytest.approx(0.4)


def test_the_lower_bound_is_corrected_like_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Estimator, "compute_lower_bound", lambda *_: 0.02)
    monkeypatch.setattr(Estimator, "seconds", lambda *_: {"forward": 0.05})
    explained = MeasuredEstimator(Predictor(forward=0.05), PLAN, step_times({"forward": 0.06}))
    assert explained.compute_lower_bound(OTHER) == pytest.approx(0.024)
    surprising = MeasuredEstimator(Predictor(forward=0.05), PLAN, step_times({"forward": 0.2}))
    assert surprising.compute_lower_bound(OTHER) == pytest.approx(0.4)


def test_groups_of_what_was_measured() -> None:
    times = step_times(
        {"data": 1.0, "forward": 2.0, "copy": 0.5, "update": 3.0, "evaluation": 4.0}, {"shard": 5.0}, bubble=6.0
    )
    groups = measured_groups(times)
    assert (groups["compute"], groups["update"], groups["shard"], groups["bubble"]) == (2.5, 3.0, 5.0, 6.0)
    assert (groups["replicate"], groups["tables"]) == (0.0, 0.0)


class Search:
    """Chooses a plan."""

    def __init__(self, plan: str) -> None:
        self.plan = Plan.parse(plan)

    def __call__(self, _: object) -> "Search":
        return self

    @property
    def chosen(self) -> "Search":
        return self

    def run(self) -> "Search":
        return self


def changed(
    monkeypatch: pytest.MonkeyPatch, plan: str, other: str, times, after: dict[str, float], handing: float = 0.0
):
    """The finding if the search prefers `other`, for which `after` is predicted; of `plan` all is explained."""
    monkeypatch.setattr("onecurve.diagnose.plan_change.BranchAndBound", Search(other))
    monkeypatch.setattr("onecurve.diagnose.plan_change.Space", lambda estimator: estimator)
    estimator = Predictor()
    own = {"forward": measured_groups(times)["compute"], **times.communication, "bubble": times.bubble}
    estimator.seconds = lambda each: own if str(each) == plan else after  # type: ignore[method-assign]
    return plan_change(estimator, Plan.parse(plan), times, handing)  # type: ignore[arg-type]


def test_another_plan_must_save_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.1})
    for after, expected in ((0.091, None), (0.089, 0.11)):
        finding = changed(monkeypatch, "mb2×4 fp32", "mb4×2 fp32", times, {"forward": after})
        assert (finding and finding.gain.expected) == (expected and pytest.approx(expected))
    finding = changed(monkeypatch, "mb2×4 fp32", "mb8 fp32", times, {"forward": 0.08})
    assert finding is not None
    assert (finding.gain.low, finding.gain.high) == (pytest.approx(0.15), pytest.approx(0.25))
    assert finding.change == '--plan "mb8 fp32" instead of "mb2×4 fp32"'
    assert changed(monkeypatch, "mb8 fp32", "mb8 fp32", times, {"forward": 0.01}) is None


def test_larger_micro_batches_are_named_if_they_are_twice_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.1})
    finding = changed(monkeypatch, "mb2×6 fp32", "mb4×3 fp32", times, {"forward": 0.05})
    assert finding is not None
    assert finding.cause == "micro_batch"
    assert "6 rounds of 2 samples per step" in finding.limit
    finding = changed(monkeypatch, "mb2×6 fp32", "mb3×4 fp32", times, {"forward": 0.05})
    assert finding is not None
    assert finding.cause == "plan"
    shorter = step_times({"forward": 0.02}, {"shard": 0.08})
    finding = changed(monkeypatch, "shard2 mb4 fp32", "mb4×2 fp32", shorter, {"forward": 0.04})
    assert finding is not None
    assert finding.cause == "communication"
    assert "axis 'shard' is not hidden by computing: 80% of the time (80.0 ms of 100.0 ms)" in finding.limit


def test_a_large_bubble_is_named_if_the_plan_has_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.08}, bubble=0.02)
    for other, cause in (
        ("pipeline2 mb1×8 fp32", "pipeline"),  # more rounds
        ("mb4×2 fp32", "pipeline"),  # fewer stages
        ("pipeline2 mb4×2 fp32", "plan"),
    ):
        finding = changed(monkeypatch, "pipeline2 mb3×4 fp32", other, times, {"forward": 0.03, "bubble": 0.015})
        assert finding is not None
        assert finding.cause == cause, other
    small = step_times({"forward": 0.086}, bubble=0.014)
    finding = changed(monkeypatch, "pipeline2 mb3×4 fp32", "mb4×3 fp32", small, {"forward": 0.05})
    assert finding is not None
    assert finding.cause == "plan"


def test_handing_over_data_costs_less_in_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"data": 0.04, "forward": 0.06})
    finding = changed(monkeypatch, "mb2×4 fp32", "mb8 fp32", times, {"forward": 0.05}, handing=0.04)
    assert finding is not None
    assert finding.gain.expected == pytest.approx(0.01 / 0.1 + 0.03 / 0.1)


def test_what_is_not_explained_stays_unless_the_axis_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecurve.diagnose.plan_change.Space", lambda estimator: estimator)
    times, estimator = step_times({"forward": 0.05}, {"replicate": 0.05}), Predictor()
    estimator.seconds = lambda plan: {  # type: ignore[method-assign]
        "forward": 0.05 if str(plan) == "replicate2 mb4 fp32" else 0.03, "replicate": 0.01 * (plan.mesh.replicate > 1)
    }  # fmt: skip
    for other, expected in (("mb8 fp32", 0.7), ("replicate2 mb2×2 fp32", 0.2)):
        monkeypatch.setattr("onecurve.diagnose.plan_change.BranchAndBound", Search(other))
        finding = plan_change(estimator, Plan.parse("replicate2 mb4 fp32"), times)  # type: ignore[arg-type]
        assert finding is not None
        assert finding.gain.expected == pytest.approx(expected)


def test_fewer_hosts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    times = step_times({"forward": 0.02}, {"replicate": 0.08})
    finding = changed(monkeypatch, "replicate2 mb4 fp32", "mb8 fp32", times, {"forward": 0.04})
    assert finding is not None
    assert finding.change.endswith(", on 1 host instead of 2")


def test_speed_and_speed_up_of_a_run() -> None:
    """Two replicas that compute for 0.06 s and update for 0.02 s of 0.1 s: one device needs 2 × 0.06 + 0.02."""
    ranks = [
        rank_history(
            n, {"forward": 0.06, "update": 0.02, "data": 0.02}, components={"weights": 100 + n, "gradients": 5}
        )
        for n in range(2)
    ]
    history = run_history(*ranks)
    history.columns.samples.append(1)
    found = diagnose(history, Plan.parse("replicate2 mb4 fp32"), None, False, "")
    assert found.speedup == pytest.approx(1.4)
    assert found.efficiency == pytest.approx(0.7)
    assert found.samples_per_second == pytest.approx(80.0)
    assert (found.memory_rank, found.memory["weights"]) == (1, 101)
    assert (found.utilization, found.tokens_per_second) == (None, None)
    sharded = diagnose(history, Plan.parse("shard2 mb4 fp32"), None, False, "")
    assert sharded.speedup == pytest.approx(1.6)


def test_utilization_is_the_flops_of_a_step_over_what_the_devices_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """2e6 FLOPs per sample, 16 samples in 0.1 s, on two devices with 1e9 FLOPs per second each."""
    profile = SimpleNamespace(flops=8e6, samples=4)
    predictor = Predictor(forward=0.05)
    predictor.costs = SimpleNamespace(  # type: ignore[assignment]
        timings=(), traces={"fp32": SimpleNamespace(large=profile)}, tokens=SimpleNamespace(per_sample=32)
    )
    monkeypatch.setattr(predictor, "peak", lambda _: 2e9, raising=False)
    monkeypatch.setattr(predictor, "memory", lambda _: {"weights": 1.0}, raising=False)
    monkeypatch.setattr("onecurve.diagnose.diagnosis.plan_change", lambda *_: None)
    monkeypatch.setattr(Estimator, "seconds", lambda *_: {"forward": 0.05})
    history = run_history(*(rank_history(n, {"forward": 0.08, "update": 0.02}) for n in range(2)))
    history.generations[0].seconds = {"forward": 2.0}  # half of it in steps that count
    found = diagnose(history, PLAN, Prediction(predictor, PLAN), False, "")
    assert found.identity is not None
    assert found.identity.factors[0].measured == pytest.approx(0.5)
    assert found.identity.work == pytest.approx(16 * 2e6 * 10)
    assert found.utilization == pytest.approx(16 * 2e6 / (2e9 * 0.1))
    assert found.tokens_per_second == pytest.approx(80 * 32)
    one = run_history(*(rank_history(n, {"forward": 0.1}) for n in range(2)), steps=1)
    assert diagnose(one, PLAN, Prediction(predictor, PLAN), False, "").utilization is None

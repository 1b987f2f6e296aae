"""Findings that another plan would mend, named after what it makes shorter."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup, Link
from onecurve.describe.diagnosis import StepTimes
from onecurve.describe.plan import Plan
from onecurve.diagnose.measured_estimator import MeasuredEstimator
from onecurve.diagnose.plan_change import plan_change
from onecurve.estimate.estimator import Estimator
from onecurve.planner.job_costs import costs_of
from onecurve.planner.traced_model import TracedModel

PLAN = Plan.parse("replicate2 mb8 fp32")


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    """For two hosts with a core each, and a model with batch norm."""
    data = [(torch.zeros(32), torch.zeros(32))] * 64
    job = oc.Job(
        model=lambda: nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 32)),
        loss=oc.loss.mse,
        data=lambda: data,
        optimizer=oc.SGD(lr=0.1),
        global_batch=16,
        steps=10,
    )
    costs = replace(costs_of(TracedModel(job, open_data(job)), ["fp32"], 2), read_seconds_per_sample=0.0)
    device = DeviceSpec(name="core", memory=10**9, memory_bandwidth=1e11, flops={"fp32": 1e9}, op_seconds=1e-7)
    hosts = HostGroup(device, count=2, inter_host=Link(1e-3, 1e7), rank_overhead_bytes=0.0)
    return Estimator(Cluster((hosts,)), costs)


@pytest.mark.parametrize(
    ("waiting", "cause", "text"),
    [
        ({"batch_norm": 0.33, "replicate": 0.17}, "batch_norm", "synchronized batch norm waits"),
        ({"batch_norm": 300.0}, "batch_norm", "synchronized batch norm waits"),  # more than the predictor explains
        ({"batch_norm": 0.17, "replicate": 0.33}, "communication", "along the axis 'replicate'"),
    ],
)
def test_the_cause_is_what_the_plan_makes_shorter(
    estimator: Estimator, waiting: dict[str, float], cause: str, text: str
) -> None:
    times = StepTimes(
        own={"forward": 0.04, "backward": 0.04},
        communication=waiting,
        bubble=0.0,
        slowest=0.0,
        uneven=0.0,
        interrupted=0.0,
        pauses={},
    )
    finding = plan_change(MeasuredEstimator(estimator, PLAN, times), PLAN, times)
    assert finding is not None
    assert (finding.cause, finding.plan) == (cause, "mb16 fp32")
    assert text in finding.limit

from dataclasses import replace

import pytest

from onecurve.describe.estimate import Estimate
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan

ESTIMATE = Estimate(
    plan=Plan(Mesh(replicate=4), 1),
    seconds={"forward": 1.5, "backward": 3.0},
    memory={"weights": 6.0, "activations": 4.0},
    available_bytes=10.0,
    utilization=0.5,
    steps=1600,
    error=0.15,
    price_per_hour=8.0,
)


def test_a_run_of_two_hours() -> None:
    assert ESTIMATE.step == pytest.approx(4.5)
    assert ESTIMATE.hours == pytest.approx(2.0)
    assert ESTIMATE.cost == pytest.approx(16.0)
    assert ESTIMATE.devices == 4
    assert replace(ESTIMATE, price_per_hour=None).cost is None


def test_a_plan_that_uses_exactly_the_available_memory_fits() -> None:
    assert ESTIMATE.fits
    assert not replace(ESTIMATE, available_bytes=9.9).fits

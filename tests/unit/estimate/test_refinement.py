import pytest

from onecurve.describe.constants import Constants
from onecurve.estimate.refinement import refined


def test_the_first_run_counts_half() -> None:
    constants = refined(Constants(error=0.2), predicted=1.0, measured=1.21)
    assert constants.calibration == pytest.approx(1.1)
    assert constants.error == pytest.approx(0.5 * 0.2 + 0.5 * 2.06 * 0.21)
    assert constants.calibration_runs == 1


def test_calibration_converges_to_the_measured_ratio() -> None:
    constants = Constants()
    for _ in range(80):
        constants = refined(constants, predicted=2.0 * constants.calibration, measured=3.0)
    assert constants.calibration == pytest.approx(1.5, rel=0.01)
    assert constants.error < 0.02


@pytest.mark.parametrize(("runs", "weight"), [(0, 1 / 2), (1, 1 / 3), (7, 1 / 9), (8, 1 / 10), (100, 1 / 10)])
def test_the_last_run_counts_like_each_of_at_most_nine_before(runs: int, weight: float) -> None:
    before = Constants(calibration=2.0, calibration_runs=runs, error=0.1)
    after = refined(before, predicted=10.0, measured=5.0)
    assert after.calibration == pytest.approx(2.0 * 0.5**weight)
    assert after.error == pytest.approx((1 - weight) * 0.1 + weight * 2.06 * 0.5)
    assert after.calibration_runs == runs + 1

import pytest

from onecurve.describe.constants import Constants
from onecurve.predict.refinement import refined


def test_half_of_the_first_surprise_is_believed() -> None:
    found = refined(Constants(error=0.2), predicted=1.0, measured=1.21)
    assert found.calibration == pytest.approx(1.1)
    assert found.error == pytest.approx(0.5 * 0.2 + 0.5 * 2.06 * 0.21)
    assert found.calibration_runs == 1


def test_it_settles_where_runs_are() -> None:
    constants = Constants()
    for _ in range(80):
        constants = refined(constants, predicted=2.0 * constants.calibration, measured=3.0)
    assert constants.calibration == pytest.approx(1.5, rel=0.01)
    assert constants.error < 0.02

"""Update of a cluster's calibration and error from a finished run."""

from dataclasses import replace

from onecurve.describe.constants import Constants

_MAX_AVERAGED_RUNS = 10
"""Older runs lose weight beyond this number, because hardware and software change."""


def refined(constants: Constants, predicted: float, measured: float) -> Constants:
    """Return the constants after a run whose step was predicted to take `predicted` seconds and took `measured`.

    The calibration is the geometric mean of measured over predicted time. The error, which nine of ten runs stay
    within, is 2.06 times the mean absolute relative error, as for a normal distribution.
    """
    weight = 1 / min(constants.calibration_runs + 2, _MAX_AVERAGED_RUNS)  # the initial constants count as one run
    ratio = measured / predicted
    return replace(
        constants,
        calibration=constants.calibration * ratio**weight,
        error=(1 - weight) * constants.error + weight * 2.06 * abs(ratio - 1),
        calibration_runs=constants.calibration_runs + 1,
    )

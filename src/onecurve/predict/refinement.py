"""What finished runs say of a cluster: how far its predictions were off, for the next one."""

from dataclasses import replace

from onecurve.describe.constants import Constants

_MOST = 10
"""Runs that are looked back on: machines and software change."""


def refined(constants: Constants, predicted: float, measured: float) -> Constants:
    """After a run whose step was predicted to take so long, and took so long.

    The lag is the geometric mean of measured over predicted; the error nine of ten runs stay within is about twice the
    mean of how far they were off (a normal distribution's, 2.06).
    """
    weight = 1 / min(constants.calibration_runs + 2, _MOST)  # what was thought before counts like one run
    off = measured / predicted
    return replace(
        constants,
        calibration=constants.calibration * off**weight,
        error=(1 - weight) * constants.error + weight * 2.06 * abs(off - 1),
        calibration_runs=constants.calibration_runs + 1,
    )

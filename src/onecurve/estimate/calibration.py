"""Correction of predicted compute time by timings of the job's own model.

Kernels differ in efficiency, and no probe measures all of them. If the model was timed on the device, the predicted
time of a round is multiplied by measured over predicted time; all other terms follow from the corrected round.
"""

import math

from onecurve.describe.arithmetic import interpolate
from onecurve.describe.cluster import HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.costs import JobCosts, Timing
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.estimate.collective import single_host_placement
from onecurve.estimate.round import CalibrationFactors, RoundModel, RoundTimes
from onecurve.estimate.scaling import Profiles


class Calibration:
    """Measured over predicted time of the job's model, by precision, threads and samples."""

    def __init__(self, hosts: HostGroup, constants: Constants, costs: JobCosts, profiles: Profiles) -> None:
        """`hosts` are the hosts on which the timings were taken."""
        self._hosts, self._constants, self._timings, self._profiles = hosts, constants, costs.timings, profiles
        self._factors = {timing: self._measured_over_predicted(timing) for timing in costs.timings}

    def of(self, plan: Plan, threads: int, samples: int) -> CalibrationFactors:
        """Return the factors for a micro-batch of `samples`, or (1, 1) without timings in the plan's precision.

        Uses the timings with the nearest number of threads and interpolates between their numbers of samples. Without
        timings of compiled blocks, a plan that compiles them takes as long as one that does not.
        """
        timings = [timing for timing in self._timings if timing.precision == plan.precision]
        has_compiled = any(timing.compiled for timing in timings)
        timings = [timing for timing in timings if timing.compiled == (plan.compile and has_compiled)]
        if not timings:
            return 1.0, 1.0
        nearest = min({timing.threads for timing in timings}, key=lambda count: abs(math.log(count / threads)))
        points = sorted(
            (math.log(timing.samples), self._factors[timing]) for timing in timings if timing.threads == nearest
        )
        forward, backward = ([(x, factors[direction]) for x, factors in points] for direction in (0, 1))
        return interpolate(forward, math.log(samples)), interpolate(backward, math.log(samples))

    def _measured_over_predicted(self, timing: Timing) -> CalibrationFactors:
        plan = Plan(mesh=Mesh(), micro_batch=timing.samples, precision=timing.precision)
        hosts = self._hosts
        if timing.threads > 1 or hosts.kind != "cpu":
            hosts = hosts.as_ranks(1)
        model = RoundModel(hosts, self._constants, lambda _, __: single_host_placement(1, hosts.intra_host))
        forward, backward = _predicted(model.of(self._profiles.of(plan, timing.samples), plan))
        return timing.forward / forward, timing.backward / backward


def _predicted(times: RoundTimes) -> tuple[float, float]:
    """Seconds of forward and of backward."""
    forward = sum(unit.count * unit.forward for unit in times.units)
    return forward, sum(unit.count * unit.backward for unit in times.units)

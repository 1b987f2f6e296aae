"""How fast a job was seen to run here, beside what is predicted for it.

Kernels differ in how well they are written, and no probe tries all of them. Where the job's model was timed on the
device, what is predicted for a round is stretched by what the timing says; everything else follows from there.
"""

import math

from onecurve.describe.arithmetic import between
from onecurve.describe.cluster import HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.costs import Costs, Timing
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.predict.collective import alone
from onecurve.predict.round import Round, Rounds
from onecurve.predict.scaling import Profiles

Factors = tuple[float, float]
"""Of forward, and of backward."""


class Calibration:
    def __init__(self, hosts: HostGroup, constants: Constants, costs: Costs, profiles: Profiles) -> None:
        """`hosts`: those that the timings are of."""
        self._hosts, self._constants, self._timings, self._profiles = hosts, constants, costs.timings, profiles
        self._known = {timing: self._factors(timing) for timing in costs.timings}

    def of(self, plan: Plan, threads: int, samples: int) -> Factors:
        """Of the timings in this precision those with the nearest number of threads, between the nearest numbers of
        samples."""
        known = [each for each in self._timings if each.precision == plan.precision]
        if not known:
            return 1.0, 1.0
        nearest = min({each.threads for each in known}, key=lambda each: abs(math.log(each / threads)))
        points = sorted((math.log(each.samples), self._known[each]) for each in known if each.threads == nearest)
        onward, back = ([(place, factors[way]) for place, factors in points] for way in (0, 1))
        return between(onward, math.log(samples)), between(back, math.log(samples))

    def _factors(self, timing: Timing) -> Factors:
        plan = Plan(Mesh(), timing.samples, precision=timing.precision)
        hosts = self._hosts
        if timing.threads > 1 or hosts.kind != "cpu":
            hosts = hosts.as_ranks(1)
        rounds = Rounds(hosts, self._constants, lambda _, __: alone(1, hosts.intra_host))
        forward, backward = _both(rounds.of(self._profiles.of(plan, timing.samples), plan))
        return timing.forward / forward, timing.backward / backward


def _both(one: Round) -> tuple[float, float]:
    return sum(unit.count * unit.forward for unit in one.units), sum(unit.count * unit.backward for unit in one.units)

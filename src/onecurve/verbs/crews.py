"""Which ranks of which hosts train under which plan. It does not import torch: the processes that it asks do."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from onecurve.describe.cluster import Cluster, Link
from onecurve.describe.convert import to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate, PredictedStep
from onecurve.describe.plan import Plan
from onecurve.describe.units import counted
from onecurve.hosts.leader import Placement
from onecurve.hosts.membership import Hosts
from onecurve.hosts.recovery import Crew
from onecurve.planner.joined_hosts import joined_cluster, similar_first
from onecurve.planner.plan_choice import ranks_for
from onecurve.search.replan import with_ranks, with_shares, with_smaller_footprint

_WORTHWHILE = 0.95
"""A change of the plan must make a step at least 5 % shorter."""
_PREPARED_LOSSES = 2


class FixedCrew:
    """What any crew can do without a planner."""

    def fits(self, _: Hosts, __: int, /) -> bool:
        """True if the run need not wait for further hosts, up to a number of hosts."""
        return True

    async def larger(self, _: Crew, __: Hosts, /) -> bool:
        """True if these hosts, of which some are new, would have a crew that is worth a change."""
        return False

    async def prepare(self, _: Hosts, /) -> None:
        """Find the crews that will be needed if hosts are lost."""

    def smaller(self, crew: Crew) -> Crew | None:
        """The crew with a plan that needs less memory; None if there is none."""
        return _with_plan(crew, with_smaller_footprint(crew.plan) if crew.plan is not None else None)

    def rebalanced(self, crew: Crew, speeds: Mapping[int, float]) -> Crew | None:
        """The crew in which slow ranks do less; None if there is none. `speeds`: of these, where the others have 1."""
        plan = crew.plan
        if plan is None or plan.mesh.data < plan.mesh.size:
            return None
        return _with_plan(crew, with_shares(plan, speeds))


@dataclass(frozen=True)
class HostCrew(FixedCrew):
    """The crew of a run on one host."""

    ranks: int
    plan: Plan | None
    predicted: PredictedStep

    async def choose(self, hosts: Hosts) -> Crew:
        return Crew([(host, self.ranks) for host in hosts], self.plan, self.predicted)


class DeviceCrews(FixedCrew):
    """Crews without a plan: a rank for each accelerator, or for each host that has none."""

    async def choose(self, hosts: Hosts) -> Crew:
        return Crew([(key, ranks_for(None, None, host.devices)) for key, host in hosts.items()])

    async def larger(self, crew: Crew, hosts: Hosts, /) -> bool:
        return (await self.choose(hosts)).size > crew.size


@dataclass
class GivenCrews(FixedCrew):
    """Crews for a plan that the user has given. If hosts are lost, it is fitted to those that are left."""

    plan: Plan
    ranks_per_host: int = 0
    """How many ranks a host has had; 0 if the run has not begun."""

    def fits(self, hosts: Hosts, most: int, /) -> bool:
        """Also if no number of hosts fits: `choose` then says so."""
        size = self.plan.mesh.size
        return spread(self.plan, hosts) is not None or all(size % more for more in range(len(hosts) + 1, most + 1))

    async def choose(self, hosts: Hosts) -> Crew:
        placement = spread(self.plan, hosts)
        if placement is not None:
            self.ranks_per_host = self.ranks_per_host or max(ranks for _, ranks in placement)
            return Crew(placement, self.plan)
        if not self.ranks_per_host:
            raise OnecurveError(
                f"plan {self.plan}: its {self.plan.mesh.size} ranks cannot be placed on "
                f"{counted(len(hosts), 'host')}; each host gets the same number of ranks, or one rank for each of its "
                "accelerators; use another plan, or another number of --hosts"
            )
        fitted = with_ranks(self.plan, self.ranks_per_host * len(hosts))
        if fitted is None:
            raise OnecurveError(
                f"plan {self.plan}: the {len(hosts)} hosts that are left are too few for it; start the same command "
                "again with more hosts, or with a plan for fewer"
            )
        return Crew(_filled(fitted.mesh.size, hosts, self.ranks_per_host), fitted)

    async def larger(self, crew: Crew, hosts: Hosts, /) -> bool:
        return (await self.choose(hosts)).size > crew.size


@dataclass
class PlannedCrews(FixedCrew):
    """Crews under the best plan for their hosts."""

    earlier: Plan | None
    """The plan of the run that is continued, which is used as long as it fits the hosts."""
    best_plan: Callable[[Cluster], Awaitable[Estimate | None]]
    measure_link: Callable[[Hosts], Awaitable[Link]]
    """The link between hosts: measured by ranks on them, unless it is known."""
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._plans: dict[str, Estimate | None] = {}
        """By the cluster, as text."""
        self._link: Link | None = None

    async def choose(self, hosts: Hosts) -> Crew:
        if self.earlier is not None and self.earlier.mesh.size % len(hosts) == 0:
            placement = spread(self.earlier, hosts)
            if placement is not None:
                return Crew(placement, self.earlier)
        self.earlier = None
        hosts = similar_first(hosts)
        if self._link is None and len(hosts) > 1:
            self._link = await self.measure_link(hosts)
        crew = await self._planned(hosts)
        if crew.plan is not None:
            ranks = counted(crew.size, "rank")
            self.say(f"plan {crew.plan}: {ranks} on {len(crew.placement)} of {len(hosts)} hosts")
        return crew

    async def larger(self, crew: Crew, hosts: Hosts, /) -> bool:
        if self._link is None:  # it can be measured only when the ranks have left
            return True
        planned = await self._planned(similar_first(hosts))
        now, then = crew.predicted.total, planned.predicted.total
        return 0 < then < _WORTHWHILE * now

    async def prepare(self, hosts: Hosts, /) -> None:
        """Plan for one and two hosts fewer. Hosts that are alike have the same plan, whichever of them is lost."""
        for lost in range(1, _PREPARED_LOSSES + 1):
            for group in self._cluster(similar_first(hosts)).groups:
                alike = [host for host, own in hosts.items() if own.devices.groups[0].is_similar(group)]
                left = {host: own for host, own in hosts.items() if host not in alike[-lost:]}
                if left:
                    await self._estimate(self._cluster(similar_first(left)))

    async def _planned(self, hosts: Hosts) -> Crew:
        cluster = self._cluster(hosts)
        estimate = await self._estimate(cluster)
        if estimate is None:
            return Crew([(key, ranks_for(None, None, host.devices)) for key, host in hosts.items()])
        return Crew(_placed(estimate.plan, cluster, [*hosts]), estimate.plan, estimate.predicted_step)

    async def _estimate(self, cluster: Cluster) -> Estimate | None:
        key = to_json(cluster)
        if key not in self._plans:
            self._plans[key] = await self.best_plan(cluster)
        return self._plans[key]

    def _cluster(self, hosts: Hosts) -> Cluster:
        link = self._link if len(hosts) > 1 else None
        return joined_cluster([*hosts.values()], link or Link())


def spread(plan: Plan, hosts: Hosts) -> Placement | None:
    """The ranks of a given plan: one for each accelerator of all hosts, or else the same number on every host; None if
    they cannot be divided so."""
    size = plan.mesh.size
    devices = {host: registration.devices for host, registration in hosts.items()}
    if all(own.device_kind != "cpu" for own in devices.values()):
        if sum(own.devices for own in devices.values()) == size:
            return [(host, own.devices) for host, own in devices.items()]
        if size > sum(own.devices for own in devices.values()):
            return None
    if size % len(hosts):
        return None
    return [(host, size // len(hosts)) for host in hosts]


def _filled(size: int, hosts: Hosts, per_host: int) -> Placement:
    """This many ranks on each of the first hosts, and what is left on the last one."""
    counts = [min(per_host, size - begin) for begin in range(0, size, per_host)]
    return list(zip(hosts, counts, strict=False))  # hosts that are not needed get none


def _placed(plan: Plan, cluster: Cluster, hosts: Sequence[str]) -> Placement:
    """Where the planner has assumed the ranks of its plan."""
    counts = [ranks for number, ranks in cluster.placement(plan.mesh.size) for _ in range(number)]
    return list(zip(hosts, counts, strict=False))  # hosts that the plan does not need get none


def _with_plan(crew: Crew, plan: Plan | None) -> Crew | None:
    if plan is None:
        return None
    peak = crew.predicted.peak_seconds if plan.mesh.size == crew.size else 0.0  # the same devices
    return replace(crew, plan=plan, predicted=PredictedStep(peak_seconds=peak))

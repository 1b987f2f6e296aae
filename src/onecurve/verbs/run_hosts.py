"""onecurve run on several hosts. The leading host finds the plan for those that joined; the others follow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from onecurve.describe.cluster import Cluster, Link
from onecurve.describe.convert import from_json, from_plain, to_json
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.host import HostAssignment, HostRegistration
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.requests import PlanRequest, RegistrationRequest, RunRequest
from onecurve.describe.summary import RunSummary
from onecurve.hosts.leader import Leader
from onecurve.hosts.recovery import Crew, lead
from onecurve.launch.local import LocalRanks
from onecurve.planner.joined_hosts import joined_cluster, known_link, remember_link, similar_first
from onecurve.planner.plan_choice import ranks_for
from onecurve.verbs.hosts import Hosts


@dataclass(frozen=True)
class HostsRun:
    """A run on several hosts, as one of them starts it."""

    request: RunRequest
    plan: Plan | None
    """None: the leading host plans for the hosts that joined."""
    earlier: Plan | None
    """The plan of the run that is continued, which is used if none is given and it fits the hosts."""
    precisions: Sequence[Precision]
    """What such a plan may compute in."""
    hosts: Hosts
    launcher: LocalRanks

    def run(self) -> RunSummary | None:
        """Take part in the run; return the summary on the host of rank 0."""
        result, has_led = self.hosts.conduct(
            self.launcher,
            question=self._question,
            conduct=lambda leader: lead(leader, "run", self.hosts.count, partial(self._choose, leader)),
            request=self._rank_request,
        )
        summary = from_plain(RunSummary, json.loads(result), "summary")
        if has_led:
            return summary
        if summary.signal is not None:
            raise InterruptError(f"the run was stopped after step {summary.steps}, and saved", summary.signal)
        return None

    def _question(self, name: str, address: str) -> RegistrationRequest:
        return RegistrationRequest(
            name=name,
            address=address,
            script=self.request.script,
            arguments=self.request.arguments,
            measures=self.plan is None,
        )

    def _rank_request(self, assigned: HostAssignment) -> str:
        return to_json(self.request) if assigned.work == "run" else "{}"

    async def _choose(self, leader: Leader, hosts: Mapping[str, HostRegistration]) -> Crew:
        """The plan for these hosts, and which ranks they get."""
        plan = self.plan
        if plan is None and self.earlier is not None and self.earlier.mesh.size % len(hosts) == 0:
            plan = self.earlier
        if plan is not None:
            return Crew(_spread(plan, hosts), plan)
        hosts = similar_first(hosts)
        cluster = joined_cluster([*hosts.values()], await self._link(leader, hosts))
        estimate = await leader.unless_stopped(self._best_plan(cluster))
        if estimate is None:
            return Crew([(key, ranks_for(None, None, host.devices)) for key, host in hosts.items()])
        placement = _placed(estimate.plan, cluster, hosts)
        size = estimate.plan.mesh.size
        self.hosts.say(f"plan {estimate.plan}: {size} rank{'s' * (size > 1)} on {len(placement)} of {len(hosts)} hosts")
        return Crew(placement, estimate.plan, estimate.seconds)

    async def _link(self, leader: Leader, hosts: Mapping[str, HostRegistration]) -> Link:
        """The link between the hosts: as remembered, or else measured by one rank per host."""
        known = known_link([*hosts.values()])
        if known is not None or len(hosts) == 1:
            return known or Link()
        self.hosts.say("measuring the links between the hosts, once")
        link = from_json(Link, (await leader.run("link", [(host, 1) for host in hosts])).encode(), "link")
        remember_link([*hosts.values()], link)
        return link

    async def _best_plan(self, cluster: Cluster) -> Estimate | None:
        question = PlanRequest(
            script=self.request.script,
            arguments=self.request.arguments,
            precisions=tuple(self.precisions),
            cluster=cluster,
        )
        answer = await self.launcher.ask_in_loop("plan", to_json(question))
        return from_json(Estimate, answer.encode(), "plan") if answer else None


def _spread(plan: Plan, hosts: Mapping[str, HostRegistration]) -> list[tuple[str, int]]:
    """The ranks of a given plan: one for each accelerator of all hosts, or else the same number on every host."""
    size = plan.mesh.size
    devices = {host: registration.devices for host, registration in hosts.items()}
    if all(own.device_kind != "cpu" for own in devices.values()) and sum(o.devices for o in devices.values()) == size:
        return [(host, own.devices) for host, own in devices.items()]
    if size % len(hosts):
        raise OnecurveError(f"plan {plan}: its {size} ranks cannot be divided evenly among {len(hosts)} hosts")
    return [(host, size // len(hosts)) for host in hosts]


def _placed(plan: Plan, cluster: Cluster, hosts: Mapping[str, HostRegistration]) -> list[tuple[str, int]]:
    """Where the planner has assumed the ranks of its plan."""
    counts = [ranks for number, ranks in cluster.placement(plan.mesh.size) for _ in range(number)]
    return list(zip(hosts, counts, strict=False))  # hosts that the plan does not need get none

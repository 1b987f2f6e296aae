"""onecurve run on several hosts. The leading host finds the plan for those that joined; the others follow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from onecurve.describe.cluster import Cluster, Link
from onecurve.describe.convert import from_json, from_plain, to_json
from onecurve.describe.errors import InterruptError
from onecurve.describe.estimate import Estimate
from onecurve.describe.host import HostAssignment, HostRegistration
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.requests import PlanRequest, RegistrationRequest, RunRequest
from onecurve.describe.summary import RunSummary
from onecurve.hosts.leader import Leader
from onecurve.hosts.recovery import Crews, lead
from onecurve.launch.local import LocalRanks
from onecurve.planner.joined_hosts import known_link, remember_link
from onecurve.verbs.crews import GivenCrews, PlannedCrews
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
            conduct=lambda leader: lead(leader, "run", self.hosts.count, self._crews(leader)),
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

    def _crews(self, leader: Leader) -> Crews:
        if self.plan is not None:
            return GivenCrews(self.plan, leader.inherited.ranks if leader.inherited is not None else 0)
        return PlannedCrews(
            earlier=self.earlier,
            best_plan=lambda cluster: leader.unless_stopped(self._best_plan(cluster)),
            measure_link=partial(self._link, leader),
            say=self.hosts.say,
        )

    async def _link(self, leader: Leader, hosts: Mapping[str, HostRegistration]) -> Link:
        """The link between the hosts: as remembered, or else measured by one rank per host."""
        known = known_link([*hosts.values()])
        if known is not None:
            return known
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

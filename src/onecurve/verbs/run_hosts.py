"""onecurve run on several hosts: one keeper per host, one of which leads."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onecurve.describe.convert import from_json, from_plain, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.host import HostRegistration, RunEnd
from onecurve.describe.plan import Plan
from onecurve.describe.requests import RegistrationRequest, RunRequest
from onecurve.describe.summary import RunSummary
from onecurve.launch.event_loop import run_to_end
from onecurve.launch.keeper import Keeper, KeptRun, host_name, result_of
from onecurve.launch.leader import RunPlan
from onecurve.launch.local import LocalRanks
from onecurve.launch.rendezvous import Rendezvous
from onecurve.planner.plan_choice import ranks_for


@dataclass(frozen=True)
class HostsRun:
    """A run on several hosts, as one of them starts it."""

    request: RunRequest
    rendezvous: Rendezvous
    hosts: int
    plan: Plan | None
    say: Callable[[str], None]

    def run(self, launcher: LocalRanks) -> RunSummary | None:
        """Take part in the run; return the summary on the host of rank 0."""
        end = run_to_end(lambda: self._keep(launcher))
        result = result_of(end)
        if not result:
            raise OnecurveError("the run ended without a summary")
        return from_plain(RunSummary, json.loads(result), "summary")

    async def _keep(self, launcher: LocalRanks) -> RunEnd:
        async with self.rendezvous.meet() as (coordination, address):
            question = RegistrationRequest(
                script=self.request.script, arguments=self.request.arguments, name=host_name(), address=address
            )
            answer = await launcher.ask_async("registration", to_json(question))
            registration = from_json(HostRegistration, answer.encode(), "registration")
            kept = KeptRun("run", self._request_with, self.hosts, self._replan)
            return await Keeper(coordination, launcher.template, registration, kept, self.say).keep()

    def _request_with(self, predicted: dict[str, float]) -> str:
        return to_json(replace(self.request, predicted=predicted))

    def _replan(self, hosts: Sequence[HostRegistration]) -> RunPlan:
        """Distribute the ranks of the plan evenly, or one per accelerator or CPU host if there is none."""
        if self.plan is None:
            return RunPlan([ranks_for(None, None, host.devices) for host in hosts], None, {})
        size = self.plan.mesh.size
        if size % len(hosts):
            raise OnecurveError(f"plan {self.plan}: its {size} ranks cannot be divided evenly among {len(hosts)} hosts")
        return RunPlan([size // len(hosts)] * len(hosts), self.plan, {})

"""onecurve run for a script that has a training loop of its own, with `oc.prepare`, instead of job()."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import InterruptError, SignalName
from onecurve.describe.estimate import PredictedStep
from onecurve.describe.host import HostRange
from onecurve.describe.plan import Plan
from onecurve.describe.requests import LoopRequest, RegistrationRequest
from onecurve.hosts.leader import Leader
from onecurve.hosts.recovery import Crews, lead
from onecurve.hosts.rendezvous import Alone
from onecurve.launch.local import LocalRanks
from onecurve.planner.plan_choice import ranks_for
from onecurve.report.log import is_verbose
from onecurve.verbs.crews import DeviceCrews, GivenCrews, HostCrew
from onecurve.verbs.hosts import Hosts
from onecurve.verbs.program import PROGRAM


@dataclass(frozen=True)
class LoopRun:
    """A run of such a script, as one of its hosts starts it."""

    script: Path
    arguments: Sequence[str]
    plan: Plan | None
    """None: the model is replicated on every rank."""
    ranks: int | None
    """Ranks of this host, if it is the only one; None: those of the plan, or one per accelerator."""

    def run(self, hosts: Hosts | None, say: Callable[[str], None]) -> None:
        """Run the script on ranks of this host, or together with others."""
        request = LoopRequest(program=str(self.script), arguments=tuple(self.arguments), verbose=is_verbose())
        with LocalRanks(PROGRAM, "loop", to_json(request), say) as launcher:
            joined = hosts or Hosts(HostRange(1, 1), Alone(), say)
            alone = self._crew_of_host(launcher) if hosts is None else None
            signal, _ = joined.conduct(
                launcher,
                question=self._question if hosts is not None else None,
                conduct=lambda leader: lead(
                    leader, "loop", joined.count, alone or self._crews_of_hosts(leader), renews=True
                ),
                request=lambda _: to_json(request),
            )
        if signal:
            raise InterruptError("the training was stopped before its last step", cast("SignalName", signal))

    def _crew_of_host(self, launcher: LocalRanks) -> HostCrew:
        ranks, plan = self.ranks, self.plan
        host = None
        if ranks is None and plan is None:
            host = from_json(Cluster, launcher.ask("devices", "{}").encode(), "devices")
        return HostCrew(ranks_for(plan, ranks, host), plan, PredictedStep())

    def _crews_of_hosts(self, leader: Leader) -> Crews:
        if self.plan is None:
            return DeviceCrews()
        return GivenCrews(self.plan, leader.inherited.ranks if leader.inherited is not None else 0)

    def _question(self, name: str, address: str) -> RegistrationRequest:
        job = {
            "script": hashlib.sha256(self.script.read_bytes()).hexdigest()[:16],
            "arguments": " ".join(self.arguments),
        }
        return RegistrationRequest(name=name, address=address, job=job)

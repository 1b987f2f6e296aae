"""Hosts that work together on a verb: one keeper on each, one of which leads."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.host import HostAssignment, HostRange, HostRegistration
from onecurve.describe.requests import RegistrationRequest
from onecurve.device.environment import LauncherTask, is_rank_of_launcher, is_rank_of_torchrun
from onecurve.hosts.keeper import Keeper, KeptRun, host_name, result_of
from onecurve.hosts.leader import Leader
from onecurve.hosts.rendezvous import Alone, Rendezvous
from onecurve.launch.event_loop import run_to_end
from onecurve.launch.local import LocalRanks


@dataclass(frozen=True)
class Hosts:
    """The hosts that the user asked for, and how they find each other."""

    count: HostRange
    rendezvous: Rendezvous | Alone
    say: Callable[[str], None]

    def conduct(
        self,
        launcher: LocalRanks,
        *,
        question: Callable[[str, str], RegistrationRequest] | None,
        conduct: Callable[[Leader], Awaitable[str]],
        request: Callable[[HostAssignment], str],
    ) -> tuple[str, bool]:
        """Take part on this host until all is done; return the result, and whether this host has led.

        `question`: (name, address) → what this host must find out about itself; None if no other host asks. `conduct`,
        `request`: see `KeptRun`.
        """

        async def register(address: str) -> HostRegistration:
            if question is None:
                return HostRegistration(name=host_name(), address=address)
            asked = question(host_name(), address)
            answer = await launcher.ask_in_loop("registration", to_json(asked))
            return from_json(HostRegistration, answer.encode(), "registration")

        keeper = Keeper(launcher.template, KeptRun(register, conduct, request, self.say))
        end = run_to_end(lambda: keeper.keep(self.rendezvous))
        return result_of(end), keeper.leads


def joined_hosts(
    hosts: int | str | None, meeting: Path, join: str | None, key_file: str | Path | None, say: Callable[[str], None]
) -> Hosts | None:
    """Read the options about hosts; return None if there is only one.

    `hosts`: None: one, or those on which srun or mpirun has started a process each. `meeting`: the file through which
    hosts find each other that see its folder.
    """
    task = LauncherTask.of_environment()
    if hosts is None:
        hosts = task.hosts if task is not None and task.is_keeper and not is_rank_of_torchrun() else 1
    count = HostRange.parse(hosts)
    if count.most == 1:
        if join is not None or key_file is not None:
            raise OnecurveError("--join and --key-file are for several hosts: give --hosts N too")
        return None
    if is_rank_of_launcher():
        raise OnecurveError(
            "--hosts: another launcher has started several processes as ranks; give the hosts to one of the two"
        )
    return Hosts(count, Rendezvous(meeting, join, Path(key_file) if key_file is not None else None), say)

"""The hosts that have joined a run: which of them are its members, and which are turned away."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.coordination.lease import Lease
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.data_marks import SAMPLES, sample_difference
from onecurve.describe.errors import OnecurveError
from onecurve.describe.host import HostAssignment, HostRange, HostRegistration
from onecurve.hosts.followed_keys import FollowedKeys
from onecurve.hosts.run_keys import RunKeys

_QUIET_SECONDS = 10.0
"""When no further host has joined for this time, the run begins if there are enough, or says how many are missing."""
_TURN_AWAY_SECONDS = 6.0
"""A host may come in place of another one before the loss of that one is known, which takes as long as a lease."""

Hosts = Mapping[str, HostRegistration]
"""By the keys of their registrations."""
Fits = Callable[[Hosts, int], bool]


class Membership:
    """Hosts by the keys of their registrations. The leader's own is always a member, and the first."""

    def __init__(
        self, coordination: Coordination, lease: Lease, keys: RunKeys, own: str, followed: FollowedKeys, gathers: bool
    ) -> None:
        """`gathers`: wait a while for further hosts before the first members are chosen."""
        self._coordination, self._lease, self._keys = coordination, lease, keys
        self._own, self._followed, self._gathers = own, followed, gathers
        self.present: dict[str, HostRegistration] = {}
        """The hosts that are here."""
        self.members: Hosts = {}
        """The hosts that the run has; some may be lost."""
        self._most = 0
        """How many it may have."""
        self._refusals: list[asyncio.Task[None]] = []
        followed.follow(keys.hosts, self._take)

    @property
    def candidates(self) -> Hosts:
        """The hosts that the run could have now: its members that are here, and others that have joined since."""
        members = [host for host in self.members if host in self.present]
        others = [host for host in self.present if host not in self.members]
        return {host: self.present[host] for host in (*members, *others)[: self._most]}

    async def wait(self, count: HostRange, place: str, say: Callable[[str], None], fits: Fits) -> Hosts:
        """Wait until enough hosts are here, and make them the members; return them.

        Raises OnecurveError, naming both sides, if a host has other versions or another job. Hosts that come later wait
        until the run needs them, or are turned away if it has as many as it may. `place`: where the hosts meet. `say`:
        told which are here. `fits`: whether the run begins with some hosts, or waits for more, up to a number.
        """
        updates = self._followed.updates()
        while True:
            are_enough = len(self.present) >= count.least and self._own in self.present
            if are_enough and (len(self.present) >= count.most or not self._gathers):
                break
            if not await updates.wait_for(_QUIET_SECONDS):
                if are_enough and fits(self.present, count.most):
                    break
                names = ", ".join(sorted(registration.name for registration in self.present.values()))
                found = f"{len(self.present)} of {count} are here ({names})"
                say(f"waiting for hosts in {place}: {found}{', which the plan does not fit' * are_enough}")
        self._gathers = False
        self._most = count.most
        others = [host for host in self.present if host != self._own][: count.most - 1]
        others.sort(key=lambda host: self.present[host].name)
        self.members = {host: self.present[host] for host in (self._own, *others)}
        for other in others:
            refuse_different(self.present[self._own], self.present[other])
        for host in self.present.keys() - self.members.keys():
            self._turn_away(host)
        return self.members

    async def wait_until_left(self, seconds: float) -> None:
        """Wait until the other members have left, or for this time."""
        updates = self._followed.updates()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.present.keys() & self.members.keys() - {self._own}:
                    await updates.wait()

    def close(self) -> None:
        for refusal in self._refusals:
            refusal.cancel()

    def _take(self, host: str, change: Change) -> None:
        if change.value is None:
            self.present.pop(host, None)
            return
        registration = from_json(HostRegistration, change.value.encode(), f"host {host}")
        if self.members and host not in self.members:
            try:
                refuse_different(self.members[self._own], registration)
            except OnecurveError as error:  # a host that comes later must not end the run
                self._refuse(host, str(error))
                return
            if len(self.members) == self._most:
                self._turn_away(host, _TURN_AWAY_SECONDS)
        self.present[host] = registration

    def _turn_away(self, host: str, seconds: float = 0.0) -> None:
        """Refuse a host, unless the run needs it after some seconds."""
        names = ", ".join(member.name for member in self.members.values())
        why = f"the run has begun without this host, on {names}; start it with more --hosts"

        def is_needed() -> bool:
            return host in self.members or len(self.members.keys() & self.present.keys()) < self._most

        self._refuse(host, why, seconds, is_needed)

    def _refuse(self, host: str, why: str, seconds: float = 0.0, is_needed: Callable[[], bool] = lambda: False) -> None:
        async def refuse() -> None:
            await asyncio.sleep(seconds)
            if not is_needed():
                with suppress(OnecurveError):  # then it is not needed either
                    assigned = to_json(HostAssignment(refusal=why))
                    await self._coordination.put(self._keys.assignment(host), assigned, self._lease)

        self._refusals.append(asyncio.create_task(refuse()))


def refuse_different(mine: HostRegistration, other: HostRegistration) -> None:
    """Raise OnecurveError, naming both sides, if a host has other versions or another job."""
    for what, ours, theirs in (("", mine.versions, other.versions), ("its job's ", mine.job, other.job)):
        for name in {**ours, **theirs}.keys() - {SAMPLES}:
            if ours.get(name) != theirs.get(name):
                raise OnecurveError(
                    f"host {other.name} ({other.address}) does not fit: {what}{name} is {theirs.get(name)!r} there and "
                    f"{ours.get(name)!r} on host {mine.name} ({mine.address}); use the same on every host"
                )
    sides = f"on host {mine.name} ({mine.address})", f"on host {other.name} ({other.address})"
    if found := sample_difference(mine.job.get(SAMPLES, ""), other.job.get(SAMPLES, ""), sides):
        raise OnecurveError(f"host {other.name} ({other.address}) does not fit: {found}")

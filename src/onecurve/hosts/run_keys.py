"""The keys under which the hosts of a run agree."""

from dataclasses import dataclass

LEADER = "leader"
"""Held by the leader of a run, with the run's name. Who creates it leads."""


@dataclass(frozen=True)
class RunKeys:
    """The keys of one run.

    All begin with a name that only this run has, and all belong to leases: what an earlier run has left in etcd is
    never taken for this one's.
    """

    run: str

    @property
    def hosts(self) -> str:
        """Begins the registrations of the hosts."""
        return f"{self.run}/hosts/"

    @property
    def reports(self) -> str:
        """Begins the reports of the hosts, each about its newest generation."""
        return f"{self.run}/reports/"

    @property
    def stalls(self) -> str:
        """Begins what hosts say whose ranks make no progress."""
        return f"{self.run}/stalls/"

    @property
    def stragglers(self) -> str:
        """Begins what hosts say that have stragglers."""
        return f"{self.run}/stragglers/"

    def assignment(self, host: str) -> str:
        return f"{self.run}/assignments/{host}"

    @property
    def notices(self) -> str:
        """Begins what all hosts are told: `stop`, `leave`, `regroup`, `give-up` and `end`."""
        return f"{self.run}/notices/"

    @property
    def stop(self) -> str:
        """The signal after which all hosts end the run."""
        return f"{self.notices}stop"

    @property
    def leave(self) -> str:
        """The newest generation that cannot go on, so that all ranks leave it."""
        return f"{self.notices}leave"

    @property
    def regroup(self) -> str:
        """The newest generation that all ranks are to leave after the next snapshot."""
        return f"{self.notices}regroup"

    @property
    def give_up(self) -> str:
        """The newest rank that has taken too long."""
        return f"{self.notices}give-up"

    @property
    def end(self) -> str:
        """How the run ended."""
        return f"{self.notices}end"

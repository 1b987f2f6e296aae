"""How a generation ended, from the reports of its hosts."""

import signal

from onecurve.describe.assignment import RankFailure
from onecurve.describe.generation import SnapshotPoint
from onecurve.describe.host import HostReport, KeptSnapshots
from onecurve.hosts.generation_end import GenerationEnd

KILLED = RankFailure(rank=2, time=5.0, exit_status=-signal.SIGKILL)
DISCONNECTED = RankFailure(rank=0, time=4.9, text="gloo: connection closed", lost_connection=True)


def test_the_rank_that_was_killed_is_named_not_the_one_that_lost_its_connection() -> None:
    reports = [HostReport(generation=1, failures=(failure,)) for failure in (DISCONNECTED, KILLED)]
    end = GenerationEnd([*zip(("h0", "h1"), reports, strict=True)])
    assert end.why() == "lost rank 2 on h1 (SIGKILL)"
    assert "rank 2 was killed by SIGKILL" in str(end.error())
    assert end.result is None


def test_a_lost_host_is_the_cause_of_lost_connections() -> None:
    end = GenerationEnd([("h0", HostReport(generation=1, failures=(DISCONNECTED,)))], ["h1"])
    assert end.why() == "lost host h1"
    assert "host h1 is lost" in str(end.error())


def test_a_snapshot_counts_if_every_rank_has_completed_it() -> None:
    reports = [
        ("h0", HostReport(generation=1, snapshots=(KeptSnapshots(3, 0, (10, 20)), KeptSnapshots(3, 1, (10, 20))))),
        ("h1", HostReport(generation=1, snapshots=(KeptSnapshots(3, 2, (10,)), KeptSnapshots(3, 3, (10, 20))))),
    ]
    assert GenerationEnd(reports).newest_snapshot({3: 4}) == SnapshotPoint(generation=3, ranks=4, step=10)
    assert GenerationEnd(reports).newest_snapshot({3: 5}) is None


def test_an_earlier_generation_counts_until_the_next_has_a_complete_snapshot() -> None:
    earlier = KeptSnapshots(3, 0, (10,)), KeptSnapshots(3, 1, (10,)), KeptSnapshots(4, 0, (12,))
    reports = [("h0", HostReport(generation=1, snapshots=earlier))]
    assert GenerationEnd(reports).newest_snapshot({3: 2, 4: 2}) == SnapshotPoint(generation=3, ranks=2, step=10)
    reports = [("h0", HostReport(generation=1, snapshots=(*earlier, KeptSnapshots(4, 1, (12,)))))]
    assert GenerationEnd(reports).newest_snapshot({3: 2, 4: 2}) == SnapshotPoint(generation=4, ranks=2, step=12)


def test_hosts_of_the_same_name_count_separately() -> None:
    first, second = HostReport(generation=1, result="the summary"), HostReport(generation=1)
    assert GenerationEnd([("node", first), ("node", second)]).result == "the summary"

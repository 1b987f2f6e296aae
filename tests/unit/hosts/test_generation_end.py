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


def test_a_rank_that_lost_its_connections_is_named_if_nothing_else_is_known() -> None:
    later = RankFailure(rank=1, time=6.0, text="gloo: closed", lost_connection=True)
    end = GenerationEnd([("h0", HostReport(generation=1, failures=(later,))),
                         ("h1", HostReport(generation=1, failures=(DISCONNECTED,)))])  # fmt: skip
    assert end.why() == "rank 0 on h1 lost its connections"
    assert "rank 0" in str(end.error())
    assert not end.is_failure
    lost = GenerationEnd([("h0", HostReport(generation=1))], ["h1", "h2"])
    assert lost.why() == "lost hosts h1, h2"
    assert lost.is_failure


def test_the_last_line_of_what_a_rank_said_is_why_it_was_lost() -> None:
    said = RankFailure(rank=3, time=5.0, text="Traceback\nValueError: mine")
    full = RankFailure(rank=4, time=5.0, text="long", is_out_of_memory=True)
    end = GenerationEnd([("h0", HostReport(generation=1, failures=(said, full)))])
    assert end.why() == "lost rank 3 on h0 (ValueError: mine), rank 4 on h0 (out of memory)"


def test_steps_and_result_of_a_generation() -> None:
    reports = [("h0", HostReport(generation=1, step=3)), ("h1", HostReport(generation=1, step=5, facts_known=True))]
    assert (GenerationEnd(reports).step, GenerationEnd(reports).facts_known) == (5, True)
    assert (GenerationEnd(reports[:1]).facts_known, GenerationEnd([]).step) == (False, 0)
    done = [("h0", HostReport(generation=1, result="the summary"))]
    assert GenerationEnd(done).result == "the summary"
    assert GenerationEnd(done, ["h1"]).result is None


def test_the_newest_of_several_complete_snapshots_counts() -> None:
    kept = (KeptSnapshots(3, 0, (10, 20)), KeptSnapshots(4, 0, (20,)))
    end = GenerationEnd([("h0", HostReport(generation=1, snapshots=kept))])
    assert end.newest_snapshot({3: 1}) == SnapshotPoint(generation=3, ranks=1, step=20)
    assert end.newest_snapshot({3: 1, 4: 1}) == SnapshotPoint(generation=4, ranks=1, step=20)
    assert end.newest_snapshot({}) is None

"""Findings about ranks that wait, with hand-worked numbers."""

import pytest

from diagnosed_run import rank_history, run_history, step_times
from onecurve.describe.mesh import Mesh
from onecurve.diagnose.waiting import busy_hosts, data, is_limited_by_loading, slow_rank, uneven_samples

WAITING = {"data": 0.06, "forward": 0.04}
READY = {"data": 0.01, "forward": 0.04, "replicate": 0.05}


def waiting_rank(**fields: float) -> list:
    """Two ranks, of which the second waits for data; a step takes 0.1 s."""
    return [rank_history(0, READY), rank_history(1, WAITING, **fields)]


def test_the_rank_that_waits_longest_decides_how_many_loader_processes_are_needed() -> None:
    """0.12 s of loading in 0.04 s of other work, with a quarter more than that: 4 processes."""
    ranks = waiting_rank(loading_seconds=1.2, loading_cpu_seconds=0.1, loader_processes=1)
    finding = data(run_history(*ranks), step_times(WAITING))
    assert finding is not None
    assert finding.job == {"workers": 4}
    assert finding.change == "workers=4 in the job"
    assert finding.limit.startswith(
        "waiting for data: 60% of each step (60.0 ms of 100.0 ms), with 1 loader process per"
    )
    assert finding.gain.expected == pytest.approx(0.6)


def test_one_process_more_than_there_are_is_asked_for_at_least() -> None:
    """Three processes that are busy for 0.2 s of 0.3 s: four of them need 0.05 s, in which 0.04 s of work is hidden."""
    ranks = waiting_rank(loading_seconds=1.9, loading_cpu_seconds=0.1, loader_processes=3)
    finding = data(run_history(*ranks), step_times({"data": 0.001, "forward": 0.099}))
    assert finding is not None
    assert finding.job == {"workers": 6}  # 1.25 × 0.19 / 0.04
    ranks = waiting_rank(loading_seconds=4.0, loading_cpu_seconds=0.1, loader_processes=6)
    finding = data(run_history(*ranks), step_times({"data": 0.04, "forward": 0.06}))
    assert finding is not None
    assert finding.job == {"workers": 13}
    tight = [rank_history(0, {"data": 0.01, "forward": 0.09}, loading_seconds=2.0, loader_processes=3)]
    finding = data(run_history(*tight), step_times({"data": 0.01, "forward": 0.09}))
    assert finding is not None
    assert finding.job == {"workers": 4}
    assert finding.gain.expected == pytest.approx(0.1)
    assert "with 3 loader processes per rank" in finding.limit


def test_a_run_that_does_not_wait_for_data_needs_nothing() -> None:
    ranks = [rank_history(0, {"forward": 0.1}, loading_seconds=5.0)]
    assert data(run_history(*ranks), step_times({"forward": 0.1})) is None
    only_data = [rank_history(0, {"data": 0.1}, loading_seconds=5.0)]
    assert data(run_history(*only_data), step_times({"data": 0.1})) is None


def test_cores_that_are_all_busy_with_loading_need_prepared_data() -> None:
    for processes, cause in ((2, "oc.data.prepared"), (1, "workers=")):
        ranks = waiting_rank(loading_seconds=1.6, loading_cpu_seconds=1.0, loader_processes=processes)
        finding = data(run_history(*ranks), step_times(WAITING))
        assert finding is not None
        assert finding.change.startswith(cause)
        assert ("use 100.0 ms of CPU time per step, and the rank has 2 cores" in finding.limit) == (processes == 2)


def test_storage_limits_if_most_of_the_loading_is_reading() -> None:
    for reading, cause in ((0.7, "storage"), (0.5, "data")):
        ranks = waiting_rank(loading_seconds=1.2, storage_seconds=reading)
        finding = data(run_history(*ranks), step_times(WAITING))
        assert finding is not None
        assert finding.cause == cause


def test_loader_processes_that_are_idle_do_not_limit() -> None:
    """Two processes can work for 0.2 s in a step of 0.1 s; busy is more than 0.6 of that."""
    assert is_limited_by_loading(rank_history(0, WAITING, loading_seconds=1.3, loader_processes=2), 0.1)
    assert not is_limited_by_loading(rank_history(0, WAITING, loading_seconds=1.1, loader_processes=2), 0.1)
    assert is_limited_by_loading(rank_history(0, WAITING, loading_seconds=0.7), 0.1)


def slowed(*forward: float, mesh: Mesh | None = None):
    ranks = [rank_history(n, {"data": 0.01, "forward": each}, host=f"h{n}") for n, each in enumerate(forward)]
    return slow_rank(run_history(*ranks), step_times({"forward": 0.1}, slowest=0.03), mesh or Mesh(replicate=3))


def test_a_slow_rank_works_a_quarter_longer_than_the_others() -> None:
    finding = slowed(0.04, 0.08, 0.04)
    assert finding is not None
    assert "rank 1 on host h1" in finding.limit
    assert "works 2.0 times as long (80.0 ms per step, the others 40.0 ms)" in finding.limit
    assert finding.gain.expected == pytest.approx(0.04 / 0.13)
    assert slowed(0.04, 0.048, 0.04) is None
    assert slowed(0.04, 0.051, 0.04) is not None
    assert slowed(0.04) is None
    assert slowed(0.04, 0.08) is not None
    assert slowed(0.04, 0.08, mesh=Mesh(pipeline=2)) is None


def test_interrupted_ranks_name_at_most_four_hosts() -> None:
    ranks = [rank_history(n, {"forward": 0.1}, host=f"h{n}") for n in range(5)]
    for count, named in ((5, "h0, h1, h2, h3, …,"), (4, "h0, h1, h2, h3,")):
        finding = busy_hosts(run_history(*ranks[:count]), step_times({"forward": 0.08}, interrupted=0.02))
        assert finding is not None
        assert f"else runs on {named}" in finding.change
        assert "takes 20% of the time (20.0 ms of 100.0 ms)" in finding.limit
        assert finding.gain.expected == pytest.approx(0.2)


def test_a_rank_alone_that_has_no_core_for_a_part_of_its_work() -> None:
    """It works for 0.09 s of a step; below 0.15 of that, it may have waited for memory or files."""
    seconds = {"data": 0.01, "forward": 0.09}
    for used, lost in ((0.07, 0.02), (0.08, 0.0)):
        ranks = [rank_history(0, seconds, cpu_seconds=10 * used)]
        finding = busy_hosts(run_history(*ranks), step_times(seconds))
        assert (finding.gain.expected if finding else 0.0) == pytest.approx(lost / 0.1)
    assert finding is None
    assert (
        busy_hosts(run_history(rank_history(0, seconds, cpu_seconds=0.7), device="cuda"), step_times(seconds)) is None
    )
    assert busy_hosts(run_history(rank_history(0, seconds)), step_times(seconds)) is None
    two = [rank_history(n, seconds, cpu_seconds=0.7) for n in range(2)]
    assert busy_hosts(run_history(*two), step_times(seconds)) is None


def test_uneven_samples_cost_what_the_others_wait() -> None:
    finding = uneven_samples(step_times({"forward": 0.08}, uneven=0.02))
    assert finding is not None
    assert "20% of the time (20.0 ms of 100.0 ms)" in finding.limit
    assert finding.gain.expected == pytest.approx(0.2)
    assert finding.gain.low == pytest.approx(0.14)

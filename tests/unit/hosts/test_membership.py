"""Which of the hosts that join a run it begins with."""

import asyncio

import pytest

from onecurve.coordination.clock import ServingClock
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.state import KeyValueState
from onecurve.describe.convert import to_json
from onecurve.describe.data_marks import SAMPLES, DataMarks, SampleMark, ValueMark
from onecurve.describe.errors import OnecurveError
from onecurve.describe.host import HostRange, HostRegistration
from onecurve.hosts import membership
from onecurve.hosts.followed_keys import FollowedKeys
from onecurve.hosts.membership import Fits, Membership, refuse_different
from onecurve.hosts.run_keys import RunKeys


def members(count: str, fits: Fits, before: list[str], after: list[str], left: str = "") -> tuple[list[str], list[str]]:
    """The members of a run that `before` join, and some time later `after`; and what is said. `left`: one leaves."""
    said: list[str] = []

    async def scenario() -> list[str]:
        coordination = LocalCoordination(KeyValueState(), ServingClock())
        keys = RunKeys("run")
        lease = await coordination.lease(60.0)

        async def join(host: str) -> None:
            registration = HostRegistration(name=host, address="10.0.0.1")
            await coordination.put(f"{keys.hosts}{host}", to_json(registration))

        with FollowedKeys(coordination) as followed:
            run = Membership(coordination, lease, keys, "h0", followed, gathers=True)
            for host in before:
                await join(host)
            waiting = asyncio.create_task(run.wait(HostRange.parse(count), "here", said.append, fits))
            await asyncio.sleep(0.3)
            if left:
                await coordination.delete(f"{keys.hosts}{left}")
            for host in after:
                await join(host)
            return [*await waiting]

    return asyncio.run(asyncio.wait_for(scenario(), 10)), said


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_QUIET_SECONDS", 0.1)


def test_a_run_begins_with_the_hosts_that_are_enough() -> None:
    assert members("2:3", lambda *_: True, ["h0", "h1"], ["h2"])[0] == ["h0", "h1"]


def test_a_run_waits_for_the_host_that_its_plan_needs() -> None:
    found, said = members("2:3", lambda hosts, most: len(hosts) == most, ["h0", "h1"], ["h2"])
    assert found == ["h0", "h1", "h2"]
    assert "waiting for hosts in here: 2 of 2 to 3 are here (h0, h1), which the plan does not fit" in said


def test_a_host_that_leaves_again_is_not_counted() -> None:
    found, _ = members("2:3", lambda hosts, _: "h1" not in hosts, ["h0", "h1"], ["h2"], left="h1")
    assert found == ["h0", "h2"]


def registration(name: str, target: str, hash_seed: str = "0") -> HostRegistration:
    mark = SampleMark(0, None, ValueMark(target, target, (), target))
    job = {"data": "8 samples", SAMPLES: to_json(DataMarks(8, (mark,), 1))}
    return HostRegistration(name=name, address="10.0.0.1", versions={"PYTHONHASHSEED": hash_seed}, job=job)


def test_a_host_with_other_samples_is_refused_with_both_values() -> None:
    refuse_different(registration("a", "3"), registration("b", "3"))
    with pytest.raises(OnecurveError, match=r"host b .* does not fit: data: dataset\[0\].*3 on host a .*, 5 on host b"):
        refuse_different(registration("a", "3"), registration("b", "5"))


def test_hosts_need_the_same_hash_seed() -> None:
    with pytest.raises(OnecurveError, match="PYTHONHASHSEED is '7' there and '0' on host a"):
        refuse_different(registration("a", "3"), registration("b", "3", hash_seed="7"))

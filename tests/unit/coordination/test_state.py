"""The state machine, against a model that is slow and obvious."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onecurve.coordination.entry import Change, Entry
from onecurve.coordination.errors import LeaseLostError
from onecurve.coordination.state import KeyValueState

KEYS = st.sampled_from(["a", "ab", "abc", "b", "b/1", "b/12"])
PREFIXES = st.sampled_from(["", "a", "ab", "abcd", "b/", "b/1"])
LEASES = st.sampled_from([1, 2, 3])


class Model(RuleBasedStateMachine):
    """Every value, lease and change in plain dictionaries and lists; every question is answered by looking at all."""

    def __init__(self) -> None:
        super().__init__()
        self.state = KeyValueState()
        self.now = 0.0
        self.values: dict[str, tuple[str, int, int | None]] = {}
        self.deadlines: dict[int, tuple[float, float]] = {}
        self.changes: list[Change] = []
        self.watches: list[tuple[str, int, list[Change]]] = []
        self.calls = 0

    def token(self) -> str:
        self.calls += 1
        return str(self.calls)

    def written(self, key: str, value: str, lease: int | None) -> None:
        version = len(self.changes) + 1
        self.values[key] = value, version, lease
        self.changes.append(Change(key, value, version))

    def removed(self, key: str) -> None:
        del self.values[key]
        self.changes.append(Change(key, None, len(self.changes) + 1))

    def ended(self, lease: int) -> None:
        del self.deadlines[lease]
        for key in sorted(key for key, value in self.values.items() if value[2] == lease):
            self.removed(key)

    @rule(lease=LEASES, seconds=st.sampled_from([1.0, 5.0]))
    def grant(self, lease: int, seconds: float) -> None:
        self.state.grant(lease, seconds, self.now)
        granted = self.deadlines.get(lease, (0.0, seconds))[1]
        self.deadlines[lease] = self.now + granted, granted

    @rule(lease=LEASES)
    def keep_alive(self, lease: int) -> None:
        assert self.state.keep_alive(lease, self.now) == (lease in self.deadlines)
        if lease in self.deadlines:
            granted = self.deadlines[lease][1]
            self.deadlines[lease] = self.now + granted, granted

    @rule(lease=LEASES)
    def revoke(self, lease: int) -> None:
        self.state.revoke(lease)
        if lease in self.deadlines:
            self.ended(lease)

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.state.expire(self.now)
        passed = [(deadline, lease) for lease, (deadline, _) in self.deadlines.items() if deadline <= self.now]
        for _, lease in sorted(passed):
            self.ended(lease)

    @rule(key=KEYS, value=st.text(max_size=2), lease=st.none() | LEASES, repeat=st.booleans())
    def create(self, key: str, value: str, lease: int | None, repeat: bool) -> None:
        token = self.token()
        if key not in self.values and lease is not None and lease not in self.deadlines:
            with pytest.raises(LeaseLostError):
                self.state.create(key, value, lease, token)
            return
        absent = key not in self.values
        assert self.state.create(key, value, lease, token) == absent
        if absent:
            self.written(key, value, lease)
        if repeat:
            assert self.state.create(key, value, lease, token) == absent

    @rule(key=KEYS, value=st.text(max_size=2), lease=st.none() | LEASES, repeat=st.booleans())
    def put(self, key: str, value: str, lease: int | None, repeat: bool) -> None:
        token = self.token()
        if lease is not None and lease not in self.deadlines:
            with pytest.raises(LeaseLostError):
                self.state.put(key, value, lease, token)
            return
        self.state.put(key, value, lease, token)
        self.written(key, value, lease)
        if repeat:
            self.state.put(key, value, lease, token)

    @rule(key=KEYS, value=st.text(max_size=2), is_current=st.booleans(), repeat=st.booleans())
    def compare_and_set(self, key: str, value: str, is_current: bool, repeat: bool) -> None:
        token = self.token()
        present = self.values.get(key)
        version = present[1] if is_current and present else max(len(self.changes) - 1, 0)
        expected = present is not None and present[1] == version
        assert self.state.compare_and_set(key, version, value, token) == expected
        if expected and present is not None:
            self.written(key, value, present[2])
        if repeat:
            assert self.state.compare_and_set(key, version, value, token) == expected

    @rule(key=KEYS, is_current=st.booleans())
    def delete(self, key: str, is_current: bool) -> None:
        present = self.values.get(key)
        version = present[1] if is_current and present else len(self.changes) + 1
        expected = present is not None and present[1] == version
        assert self.state.delete(key, version) == expected
        if expected:
            self.removed(key)

    @rule(prefix=PREFIXES)
    def watch(self, prefix: str) -> None:
        received: list[Change] = []
        listing = self.state.listing(prefix)
        expected = [Change(key, *self.values[key][:2]) for key in sorted(self.values) if key.startswith(prefix)]
        assert listing == expected
        self.state.watch(prefix, received.extend)
        self.watches.append((prefix, len(self.changes), received))

    @rule(data=st.data())
    def unwatch(self, data: st.DataObject) -> None:
        if self.watches:
            prefix, _, received = self.watches.pop(data.draw(st.integers(0, len(self.watches) - 1)))
            self.state.unwatch(prefix, received.extend)

    @invariant()
    def every_key_is_as_in_the_model(self) -> None:
        assert self.state.revision == len(self.changes)
        for key in ["a", "ab", "abc", "b", "b/1", "b/12"]:
            present = self.values.get(key)
            assert self.state.get(key) == (Entry(*present[:2]) if present else None)

    @invariant()
    def every_watch_has_received_every_change_once_and_in_order(self) -> None:
        for prefix, begun, received in self.watches:
            assert received == [change for change in self.changes[begun:] if change.key.startswith(prefix)]


Model.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestState = Model.TestCase


def test_renewing_many_leases_does_not_look_at_them_when_time_passes():
    state = KeyValueState()
    for lease in range(10_000):
        state.grant(lease, 5.0, 0.0)
    for lease in range(10_000):
        state.keep_alive(lease, 4.0)
    heap = state._deadlines._heap
    before = list(heap)
    state.expire(4.5)
    assert heap == before, "nothing was due, so nothing was moved"
    state.expire(8.9)
    assert state.keep_alive(0, 8.9)
    state.expire(9.1)
    assert state.keep_alive(0, 9.1)
    assert not state.keep_alive(1, 9.1)

"""The state machine of the in-memory backend: keys, versions, leases and watches. No I/O; time is passed in."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onecurve.coordination.deadlines import Deadlines
from onecurve.coordination.entry import Change, Entry
from onecurve.coordination.errors import LeaseLostError

Deliver = Callable[[Sequence[Change]], None]

_AFTER_ALL_KEYS = "\x7f"
"""Sorts after every character that a key may have."""


@dataclass(slots=True)
class StoredValue:
    """A value as the state machine holds it."""

    value: str
    version: int
    lease: int | None
    token: str
    """Which call wrote it. A call that is repeated because its answer was lost finds its own token."""


@dataclass(slots=True)
class GrantedLease:
    """A lease that has not expired."""

    seconds: float
    keys: set[str] = field(default_factory=set)


class KeyValueState:
    """Keys and values with versions, leases and watches.

    `now` may be any clock that does not run backwards. A lease expires in the first call of `expire` that is not
    earlier than its last renewal plus its time.
    """

    def __init__(self) -> None:
        self.revision = 0
        """Number of the last change."""
        self._values: dict[str, StoredValue] = {}
        self._sorted_keys: list[str] = []
        self._leases: dict[int, GrantedLease] = {}
        self._deadlines = Deadlines()
        self._watchers: dict[str, dict[Deliver, None]] = {}
        self._prefix_lengths: Counter[int] = Counter()
        """How many prefixes of each length are watched: only these lengths are looked up when a key changes."""

    def grant(self, lease: int, seconds: float, now: float) -> None:
        """Grant a lease under a number that the caller chose at random; granting it again renews it."""
        self._leases.setdefault(lease, GrantedLease(seconds))
        self.keep_alive(lease, now)

    def keep_alive(self, lease: int, now: float) -> bool:
        """Renew a lease; return False if it has expired."""
        granted = self._leases.get(lease)
        if granted is None:
            return False
        self._deadlines.set(lease, now + granted.seconds)
        return True

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys, in alphabetical order."""
        granted = self._leases.pop(lease, None)
        if granted is None:
            return
        self._deadlines.remove(lease)
        for key in sorted(granted.keys):
            self._remove(key)

    def expire(self, now: float) -> None:
        """End the leases that were not renewed in time."""
        for lease in self._deadlines.pop_passed(now):
            self.revoke(lease)

    def create(self, key: str, value: str, lease: int | None, token: str) -> bool:
        """Create the key if it is absent; return True also if this very call has created it before."""
        present = self._values.get(key)
        if present is not None:
            return present.token == token
        self._write(key, value, lease, token)
        return True

    def put(self, key: str, value: str, lease: int | None, token: str) -> None:
        """Write the key, whatever it holds, unless this very call has written it before."""
        present = self._values.get(key)
        if present is None or present.token != token:
            self._write(key, value, lease, token)

    def get(self, key: str) -> Entry | None:
        present = self._values.get(key)
        return Entry(present.value, present.version) if present is not None else None

    def compare_and_set(self, key: str, version: int, value: str, token: str) -> bool:
        """Write the key if it has this version; return True also if this very call has written it before."""
        present = self._values.get(key)
        if present is None:
            return False
        if present.version != version:
            return present.token == token
        self._write(key, value, present.lease, token)
        return True

    def delete(self, key: str, version: int) -> bool:
        """Delete the key if it has this version."""
        present = self._values.get(key)
        if present is None or present.version != version:
            return False
        if present.lease is not None:
            self._leases[present.lease].keys.discard(key)
        self._remove(key)
        return True

    def listing(self, prefix: str) -> list[Change]:
        """Return the keys that begin with a prefix, in alphabetical order."""
        first = bisect_left(self._sorted_keys, prefix)
        last = bisect_left(self._sorted_keys, prefix + _AFTER_ALL_KEYS)
        keys = self._sorted_keys[first:last]
        return [Change(key, self._values[key].value, self._values[key].version) for key in keys]

    def watch(self, prefix: str, deliver: Deliver) -> None:
        """Call `deliver` with every later change of a key that begins with `prefix`, in order."""
        if prefix not in self._watchers:
            self._prefix_lengths[len(prefix)] += 1
        self._watchers.setdefault(prefix, {})[deliver] = None

    def unwatch(self, prefix: str, deliver: Deliver) -> None:
        """Stop what `watch` began."""
        watchers = self._watchers[prefix]
        del watchers[deliver]
        if watchers:
            return
        del self._watchers[prefix]
        self._prefix_lengths[len(prefix)] -= 1
        if not self._prefix_lengths[len(prefix)]:
            del self._prefix_lengths[len(prefix)]

    def _write(self, key: str, value: str, lease: int | None, token: str) -> None:
        if lease is not None and lease not in self._leases:
            raise LeaseLostError(f"key {key!r} was not written: its lease has expired")
        present = self._values.get(key)
        if present is None:
            insort(self._sorted_keys, key)
        elif present.lease is not None:
            self._leases[present.lease].keys.discard(key)
        if lease is not None:
            self._leases[lease].keys.add(key)
        self.revision += 1
        self._values[key] = StoredValue(value, self.revision, lease, token)
        self._report(Change(key, value, self.revision))

    def _remove(self, key: str) -> None:
        del self._values[key]
        del self._sorted_keys[bisect_left(self._sorted_keys, key)]
        self.revision += 1
        self._report(Change(key, None, self.revision))

    def _report(self, change: Change) -> None:
        for length in self._prefix_lengths:
            if length <= len(change.key):
                for deliver in self._watchers.get(change.key[:length], ()):
                    deliver((change,))

"""Which accesses to memory are ordered: by their stream, by an event, or because the host has waited."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection

Stream = tuple[int, int]
"""Device and stream."""
Clock = Counter[Stream]
"""Number of tasks of each stream that are known to be done."""


class Order:
    """Vector clocks of the streams and of the host, and who has used which block of memory."""

    def __init__(self, found: Callable[[str], None]) -> None:
        """`found` is told about every access that is not ordered."""
        self._found = found
        self._queued: Clock = Counter()
        self._known: defaultdict[Stream, Clock] = defaultdict(Counter)
        self._host: Clock = Counter()
        self._uses: defaultdict[int, dict[Stream, int]] = defaultdict(dict)
        self._writers: dict[int, tuple[Stream, int]] = {}
        self._recorded: defaultdict[int, set[Stream]] = defaultdict(set)
        self._returned: defaultdict[Stream, list[dict[Stream, int]]] = defaultdict(list)

    def add(self, stream: Stream, name: str, reads: Collection[int], writes: Collection[int]) -> None:
        """A task is queued."""
        self._queued[stream] += 1
        position = self._queued[stream]
        known = self._known[stream]
        known |= self._host
        known[stream] = position
        for block in {*reads, *writes}:
            self._check(stream, name, known, block, block in writes)
            if block in writes:
                self._writers[block] = stream, position
            self._uses[block][stream] = position

    def queued(self, stream: Stream) -> int:
        """Number of tasks that a stream has been given."""
        return self._queued[stream]

    def streams(self, device: int) -> list[Stream]:
        """Streams of a device that have been used."""
        return [stream for stream in self._queued if stream[0] == device]

    def clock(self, stream: Stream) -> Clock:
        """What is done when a stream has done all that it was given."""
        return self._known[stream] | self._host | Counter({stream: self._queued[stream]})

    def stream_waits(self, stream: Stream, clock: Clock) -> None:
        self._known[stream] |= clock

    def host_waits(self, clock: Clock) -> None:
        self._host |= clock

    def record_stream(self, block: int, stream: Stream) -> None:
        self._recorded[block].add(stream)

    def free(self, block: int, owner: Stream | None, unfinished: bool) -> None:
        """A block is freed. `owner`: the stream that it was allocated on; None: pinned memory."""
        uses, recorded = self._uses.pop(block, {}), self._recorded.pop(block, set())
        self._writers.pop(block, None)
        if unfinished and owner is not None:
            foreign = {stream: use for stream, use in uses.items() if stream != owner and stream not in recorded}
            if foreign:
                self._returned[owner].append(foreign)

    def allocate(self, owner: Stream) -> None:
        """A block is allocated: it may be one that was freed before, whose users on other streams must be done."""
        known = self._known[owner] | self._host
        for uses in self._returned.pop(owner, []):
            for stream, use in uses.items():
                if known[stream] < use:
                    self._found(f"memory of stream {owner} is allocated again while stream {stream} may still use it")

    def _check(self, stream: Stream, name: str, known: Clock, block: int, writes: bool) -> None:
        writer, written = self._writers.get(block, (stream, 0))
        if writer != stream and known[writer] < written:
            self._found(f"{name} on stream {stream} uses what stream {writer} may not have written yet")
        if writes:
            for user, use in self._uses[block].items():
                if user != stream and known[user] < use:
                    self._found(f"{name} on stream {stream} writes what stream {user} may still use")

"""How two servers keep the same rows, and how others take their place: what a server answers to each message.

The data path is that of PacificA (Lin, Yang, Zhang, Zhang 2008, MSR-TR-2008-25): a push counts once the primary and the
backup of its piece have staged it; then both add the same steps in the same order. The view, which says who is primary
and backup, is decided elsewhere, by compare-and-swap; messages of another epoch than the server's are refused. A new
backup first gets a copy of the piece and everything that is pushed meanwhile, and then a place in the view.

Ranks that continue from an earlier step, a new crew, say so in every message; rows then go back to that step.

Nothing here sends, waits or looks at a clock: `RowServer` takes a message and returns those to send.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic

from onecurve.params.held_piece import HeldPiece, MakeRows, Part
from onecurve.params.messages import (
    Answer,
    Copied,
    Copy,
    Message,
    Pull,
    Push,
    Pushed,
    RankMessage,
    Read,
    Refused,
    Relay,
    Relayed,
    Rows,
    Sent,
)
from onecurve.params.step_log import RowCrew, StepLog
from onecurve.params.view import View


class RowServer(Generic[Part]):
    """One server. Every method returns the messages to send."""

    def __init__(self, name: str, crew: RowCrew, make_rows: MakeRows[Part]) -> None:
        """`crew`: the first one."""
        self.name, self._crew, self._make_rows = name, crew, make_rows
        self.view = View(epoch=0, pieces={})
        self._pieces: dict[int, HeldPiece[Part]] = {}

    def _create(self, piece: int, end: int) -> None:
        """Have a piece that nobody has had before."""
        rows = self._make_rows(range(piece, end), None)
        self._pieces[piece] = HeldPiece(end=end, rows=rows, log=StepLog(crew=self._crew))

    def joined(self) -> dict[int, str]:
        """Pieces of which this server is primary, each with the server that can take part now."""
        joining = {piece: self.view.pieces[piece].joining for piece in self._pieces if self._is_primary(piece)}
        return {
            piece: server
            for piece, server in joining.items()
            if self._pieces[piece].has_joined and not self._missing(piece, server)
        }

    def change_view(self, view: View) -> list[Sent]:
        """Follow a newer view."""
        if view.epoch <= self.view.epoch:
            return []
        before, self.view = self.view, view
        if before.epoch == 0 or before.restarts != view.restarts:
            # To have a place in the first view that it sees, without having joined, it was there from the beginning.
            for begin in [*self._pieces]:
                self._drop(begin)
            for begin, piece in view.pieces.items():
                if self.name in (piece.primary, piece.backup):
                    self._create(begin, piece.end)
        self._split()
        sent: list[Sent] = []
        for begin, piece in view.pieces.items():
            if self.name not in piece.servers:
                self._drop(begin)
                continue
            if piece.primary != self.name and begin in self._pieces:
                self._pieces[begin].end_as_primary()
            earlier = before.piece_with(begin)
            joins_now = earlier is None or (earlier.joining, earlier.since) != (piece.joining, piece.since)
            if piece.joining == self.name and joins_now:
                self._drop(begin)  # what it has had may be old
            elif begin in self._pieces and piece.primary == self.name:
                if joins_now:
                    self._pieces[begin].has_joined = False
                    self._pieces[begin].confirmed.pop(piece.joining, None)
                sent += self._remind(begin)
        return sent

    def _drop(self, piece: int) -> None:
        if piece in self._pieces:
            self._pieces.pop(piece).rows.drop()

    def _split(self) -> None:
        """Have the same pieces as the view."""
        begins = sorted(self.view.pieces)
        for begin, own in [*self._pieces.items()]:
            for slot in begins:
                if begin < slot < own.end:
                    self._pieces[slot] = own = self._pieces[begin].split(slot)
                    begin = slot

    def remind(self) -> list[Sent]:
        """Send again what was not answered."""
        return [sent for piece in self._pieces if self._is_primary(piece) for sent in self._remind(piece)]

    def _remind(self, piece: int) -> list[Sent]:
        own, joining = self._pieces[piece], self.view.pieces[piece].joining
        sent: list[Sent] = []
        if joining and not own.has_joined:
            sent.append(self._copy_to(piece, joining))
        sent += self._relay_missing(piece)
        for key in [*own.unanswered]:
            sent += self._answer_push(piece, key)
        return sent

    def _copy_to(self, piece: int, server: str) -> Sent:
        own = self._pieces[piece]
        rows, log = own.rows.copy(), own.log.copy()
        return server, Copy(epoch=self.view.epoch, piece=piece, sender=self.name, rows=rows, log=log)

    def take(self, message: Message) -> list[Sent]:
        """Take in a message of another server or a rank."""
        piece = self.view.pieces.get(message.piece)
        if message.epoch != self.view.epoch or piece is None:
            return self._refuse(message)
        if isinstance(message, Copy) and piece.joining == self.name and piece.primary == message.sender:
            return self._take_copy(message, piece.end)
        if message.piece not in self._pieces:
            return self._refuse(message)
        own = self._pieces[message.piece]
        crew = _crew_of(message)
        if crew is not None and crew.number > own.log.crew.number and not own.enter(crew):
            return self._refuse(message, lost=crew.start)
        if crew is not None and crew.number < own.log.crew.number:
            return self._refuse(message)
        if isinstance(message, Relay):
            return self._take_relay(message)
        if piece.primary != self.name:
            return self._refuse(message)
        return list(self._take_as_primary(message))

    def _refuse(self, message: Message, lost: int | None = None) -> list[Sent]:
        if isinstance(message, Refused | Answer | Relayed | Copied):
            return []
        return [(message.sender, Refused(epoch=self.view.epoch, piece=message.piece, sender=self.name, lost=lost))]

    def _take_copy(self, message: Copy, end: int) -> list[Sent]:
        """Copies may come late and in any order: nothing that is known is forgotten."""
        piece, log, own = message.piece, message.log, self._pieces.get(message.piece)
        if own is None or (own.log.crew.number, own.log.applied) < (log.crew.number, log.applied):
            self._drop(piece)
            self._pieces[piece] = HeldPiece(
                end=end, rows=self._make_rows(range(piece, end), message.rows), log=log.copy()
            )
            if own is not None and own.log.crew == log.crew:
                self._pieces[piece].log.merge(own.log)
        elif own.log.crew == log.crew:
            own.log.merge(log)
        self._advance(piece)
        now = self._pieces[piece].log
        copied = Copied(epoch=self.view.epoch, piece=piece, sender=self.name, crew=now.crew.number, applied=now.applied)
        return [(message.sender, copied)]

    def _take_relay(self, message: Relay) -> list[Sent]:
        own, push = self._pieces[message.piece], message.push
        own.log.stage(push.step, push.rank, push.part)
        own.log.decide(message.verdicts)
        for rank, step in message.received.items():
            own.log.note_received(rank, step)
        own.rows.keep(message.points)
        self._advance(message.piece)
        done = Relayed(
            epoch=self.view.epoch,
            piece=message.piece,
            sender=self.name,
            crew=push.crew.number,
            step=push.step,
            rank=push.rank,
        )
        return [(message.sender, done)]

    def _take_as_primary(self, message: Message) -> Iterator[Sent]:
        piece, own = message.piece, self._pieces[message.piece]
        if isinstance(message, RankMessage):
            own.log.decide(message.verdicts)
            own.log.note_received(message.rank, message.received)
            own.rows.keep(message.points)
        # With a thousand ranks, nothing may look at all of them for each message.
        asked: list[tuple[int, int, int]] = []
        if isinstance(message, Push):
            yield from self._take_push(message)
        elif isinstance(message, Pull):
            asked = [(message.step, message.rank, message.number)]
            own.waiting[asked[0]] = message
        elif isinstance(message, Relayed) and message.crew == own.log.crew.number:
            own.confirmed.setdefault(message.sender, set()).add((message.step, message.rank))
            yield from self._answer_push(piece, (message.step, message.rank))
        elif isinstance(message, Copied) and message.sender == self.view.pieces[piece].joining:
            yield from self._take_copied(message)
        yield from self._answer_pulls(piece, [*own.waiting] if self._advance(piece) else asked)

    def _take_push(self, message: Push) -> Iterator[Sent]:
        piece, own, key = message.piece, self._pieces[message.piece], (message.step, message.rank)
        was_complete = own.log.is_complete(message.step)
        own.log.stage(*key, message.part)
        # The part that came first counts, also for the others.
        part = own.log.staged.get(message.step, {}).get(message.rank, message.part)
        own.unanswered[key] = replace(message, part=part)
        yield from (self._relay(server, own.unanswered[key]) for server in self._others(piece))
        completes = own.log.is_complete(message.step) and not was_complete
        keys = [each for each in own.unanswered if each[0] == message.step] if completes else [key]
        yield from (sent for each in keys for sent in self._answer_push(piece, each))

    def _take_copied(self, message: Copied) -> list[Sent]:
        piece, own = message.piece, self._pieces[message.piece]
        if own.has_joined:
            return []
        if (message.crew, message.applied) < (own.log.crew.number, own.log.applied):
            return [self._copy_to(piece, message.sender)]  # a step was added meanwhile, whose parts it may lack
        own.has_joined = True
        return self._relay_missing(piece)

    def _others(self, piece: int) -> list[str]:
        """The servers that must have a push before it is answered."""
        view = self.view.pieces[piece]
        joining = view.joining if self._pieces[piece].has_joined else ""
        return [server for server in (view.backup, joining) if server]

    def _relay(self, server: str, push: Push) -> Sent:
        log = self._pieces[push.piece].log
        relay = Relay(
            epoch=self.view.epoch,
            piece=push.piece,
            sender=self.name,
            push=replace(push, epoch=self.view.epoch, crew=log.crew),
            verdicts=dict(log.verdicts),
            received={push.rank: log.received.get(push.rank, 0)},
            points=tuple(self._pieces[push.piece].rows.points),
        )
        return server, relay

    def _relay_missing(self, piece: int) -> list[Sent]:
        """Relay what is staged here to those that are not known to have it."""
        log, sent = self._pieces[piece].log, list[Sent]()
        for server in self._others(piece):
            for step, rank in self._missing(piece, server):
                part = log.staged[step][rank]
                push = Push(epoch=self.view.epoch, piece=piece, step=step, rank=rank, crew=log.crew, part=part)
                sent.append(self._relay(server, push))
        return sent

    def _answer_push(self, piece: int, key: tuple[int, int]) -> list[Sent]:
        """Answer a rank whose push is on all copies, once all ranks have pushed: squares need the last of them."""
        own = self._pieces[piece]
        push = own.unanswered.get(key)
        if push is None:
            return []
        squares = None
        if push.step > own.log.applied:
            if not self._is_confirmed(piece, key):
                return []
            if not own.log.is_complete(push.step):
                return []
            parts = own.log.staged[push.step]
            squares = own.rows.squares(push.step, [parts[rank] for rank in sorted(parts)])
        del own.unanswered[key]
        done = Pushed(
            epoch=self.view.epoch,
            piece=piece,
            sender=self.name,
            crew=push.crew.number,
            step=push.step,
            rank=push.rank,
            squares=squares,
        )
        return [(push.sender, done)]

    def _missing(self, piece: int, server: str) -> list[tuple[int, int]]:
        """What is staged here, by step and rank, but not known to be on another server."""
        own = self._pieces[piece]
        has = own.confirmed.get(server, set())
        return [(step, rank) for step, parts in own.log.staged.items() for rank in parts if (step, rank) not in has]

    def _is_confirmed(self, piece: int, key: tuple[int, int]) -> bool:
        confirmed = self._pieces[piece].confirmed
        return all(key in confirmed.get(server, set()) for server in self._others(piece))

    def _advance(self, piece: int) -> bool:
        """Add the steps that can be added, the primary only those that all copies have. Return False if none was."""
        own = self._pieces[piece]
        before = own.log.applied

        def may_add(step: int) -> bool:
            if not self._is_primary(piece) or step <= own.log.crew.start:  # up to there, all pushes were answered
                return True
            return all(self._is_confirmed(piece, (step, rank)) for rank in range(own.log.crew.ranks))

        for ready in own.log.ready(may_add):
            own.rows.add(ready)
        if own.log.applied == before:
            return False
        for known in own.confirmed.values():
            known -= {key for key in known if key[0] <= own.log.applied}
        return True

    def _answer_pulls(self, piece: int, keys: Sequence[tuple[int, int, int]]) -> list[Sent]:
        own, sent = self._pieces[piece], list[Sent]()
        for key in keys:
            pull = own.waiting.pop(key)
            needed = pull.step - 1
            if needed == own.log.applied or (needed < own.log.applied and pull.may_be_newer):
                rows = Rows(
                    epoch=self.view.epoch,
                    piece=piece,
                    sender=self.name,
                    crew=pull.crew.number,
                    step=pull.step,
                    rank=pull.rank,
                    number=pull.number,
                    rows=own.rows.read(pull.slots, pull.since, pull.limit, pull.tables)
                    if isinstance(pull, Read)
                    else own.rows.get(pull.ids),
                )
                sent.append((pull.sender, rows))
            elif needed > own.log.applied:
                own.waiting[key] = pull
        return sent

    def _is_primary(self, piece: int) -> bool:
        return piece in self.view.pieces and self.view.pieces[piece].primary == self.name


def _crew_of(message: Message) -> RowCrew | None:
    """The crew that a message speaks of; None if it does not."""
    if isinstance(message, RankMessage):
        return message.crew
    return message.push.crew if isinstance(message, Relay) else None

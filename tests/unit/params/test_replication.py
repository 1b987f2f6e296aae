"""Servers under any schedule of lost, late and repeated messages, pauses, crashes, changes of the view, and ranks that
start again from an earlier step.

Every schedule is drawn from a seed. Checked are: a rank gets the rows of exactly the step that it asks for, so nothing
that was confirmed is lost, and nothing is added twice; and all ranks finish once the faults end.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from onecurve.job.row_point import StepVerdict
from onecurve.params.messages import (
    Answer,
    Message,
    Pull,
    Push,
    Pushed,
    Refused,
    Relayed,
    Rows,
    Sent,
)
from onecurve.params.replication import RowServer
from onecurve.params.step_log import ReadyStep, RowCrew
from onecurve.params.view import Piece, View

SLOTS, STEPS, SERVERS = 4, 4, ("a", "b", "c")
Part = tuple[str, ...]
"""One word per slot."""


def pushed_part(slots: range, step: int, rank: int, crew: int) -> Part:
    return tuple(f"{slot}:{step}:{rank}:{crew}" for slot in slots)


def verdict_of(step: int, crew: int) -> StepVerdict:
    return StepVerdict(factor=1 / step, lr_factor=crew, is_skipped=step == 3)


class History:
    """The rows of a piece: for each slot, all that was added."""

    def __init__(self, slots: range, contents: Any) -> None:
        self._begin = slots.start
        self.added: list[tuple[Any, ...]] = list(contents[0]) if contents else [()] * len(slots)
        self._steps: int = contents[1] if contents else 0
        """So many were added."""
        self.points: tuple[int, ...] = tuple(contents[2]) if contents else ()
        self._kept: set[int] = set(contents[3]) if contents else set()
        """Points at which it was known that the rows may go back to them."""

    def add(self, ready: ReadyStep[Part]) -> None:
        self._steps += 1
        for at, before in enumerate(self.added):
            words = tuple(part[at] for part in ready.parts)
            self.added[at] = (*before, (ready.step, words, ready.verdict))
        self._note()

    def _note(self) -> None:
        self._kept = (self._kept | {self._steps}) & set(self.points)

    def keep(self, points: Sequence[int]) -> None:
        if not points or not self.points or max(points) >= max(self.points):
            self.points = tuple(points)
            self._note()

    def can_go_back(self, step: int) -> bool:
        return step in self._kept

    def go_back(self, step: int) -> None:
        self._steps = step
        self.added = [words[:step] for words in self.added]
        self._note()

    def begin_crew(self, step: int) -> None:
        self.points = tuple(point for point in self.points if point <= step)
        self._note()

    def get(self, _: Any) -> tuple[Any, ...]:
        return tuple(self.added)

    def read(self, *_: Any) -> None:
        raise AssertionError("no rank reads")

    def squares(self, _: int, parts: Sequence[Part]) -> tuple[Part, ...]:
        return tuple(parts)

    def copy(self) -> Any:
        return list(self.added), self._steps, self.points, sorted(self._kept)

    def split(self, slot: int) -> "History":
        at = slot - self._begin
        other = History(range(slot, slot), (self.added[at:], self._steps, self.points, sorted(self._kept)))
        self.added = self.added[:at]
        return other

    def drop(self) -> None:
        self.added = []

    def divide(self, part: Part, slot: int) -> tuple[Part, Part]:
        return part[: slot - self._begin], part[slot - self._begin :]


class Rank:
    """A rank that pulls, pushes, and asks again what was not answered."""

    def __init__(self, world: "World", number: int, crew: RowCrew) -> None:
        self._world, self.number, self.name, self._crew = world, number, f"rank{number}", crew
        self.view = world.view
        self.received = self.pushed = crew.start
        self._points = world.points
        self._answered: set[int] = set()

    @property
    def is_pulling(self) -> bool:
        return self.received < min(STEPS, self.pushed + 1)

    @property
    def may_go_on(self) -> bool:
        """A verdict needs the pushes of all ranks."""
        return self._world.decided >= self.pushed

    def ask(self) -> list[Sent]:
        """Ask for all that is not answered yet."""
        if not self.may_go_on or self.pushed == STEPS:
            return []
        return [
            (piece.primary, self._question(begin, piece.end))
            for begin, piece in self.view.pieces.items()
            if not self._answered.issuperset(range(begin, piece.end))
        ]

    def _question(self, begin: int, end: int) -> Message:
        about: dict[str, Any] = {
            "epoch": self.view.epoch,
            "piece": begin,
            "sender": self.name,
            "rank": self.number,
            "crew": self._crew,
            "received": self.received,
            "points": self._points,
            "verdicts": self._verdicts(),
        }
        if not self.is_pulling:
            step = self.pushed + 1
            return Push(**about, step=step, part=pushed_part(range(begin, end), step, self.number, self._crew.number))
        return Pull(**about, step=self.received + 1)

    def _verdicts(self) -> dict[int, StepVerdict]:
        latest = range(max(1, self.pushed - 1), self.pushed + 1)
        return {step: verdict_of(step, self._world.crew_in(step).number) for step in latest}

    def take(self, message: Message) -> None:
        if isinstance(message, Refused):
            assert message.lost is None, f"step {message.lost} is lost"
            if message.epoch > self.view.epoch:
                self.view = self._world.view
            return
        assert isinstance(message, Answer)
        is_pull = isinstance(message, Rows)
        step = self.received + 1 if is_pull else self.pushed + 1
        if message.step != step or is_pull != self.is_pulling or message.crew != self._crew.number:
            return  # it was answered before
        piece = self.view.pieces.get(message.piece)
        if message.epoch != self.view.epoch or piece is None:
            return
        slots = range(message.piece, piece.end)
        if isinstance(message, Rows):
            assert message.rows == self._world.expected_rows(slots, step - 1), f"step {step} of {slots}"
        elif isinstance(message, Pushed):
            crew = self._crew
            sums = tuple(pushed_part(slots, step, rank, crew.number) for rank in range(crew.ranks))
            assert message.squares == sums, f"squares of step {step} of {slots}"
        self._answered.update(slots)
        if len(self._answered) == SLOTS:
            self._answered.clear()
            if is_pull:
                self.received += 1
            else:
                self.pushed += 1
                self._points = self._world.points_after(self.pushed)


class World:
    """Servers, ranks, the messages on their way, and the view, which changes by compare-and-swap."""

    def __init__(self, seed: int, make_server: Callable[..., RowServer[Part]] = RowServer) -> None:
        self.draw = random.Random(seed)
        half = SLOTS // 2
        self.view = View(1, {begin: Piece(begin + half, *self.draw.sample(SERVERS, 2)) for begin in (0, half)})
        self._crews = [RowCrew(1, 2)]
        self._make_server = make_server
        self.servers = {name: self._server(name) for name in SERVERS}
        for server in self.servers.values():
            server.change_view(self.view)
        self.points: tuple[int, ...] = (0,)
        """Ranks that start again do so after one of these steps."""
        self._snapshots = {step for step in range(1, STEPS) if self.draw.random() < 0.5}
        self._start_ranks()
        self.messages: list[Sent] = []
        self.paused: set[str] = set()
        self.crashed: set[str] = set()

    def _server(self, name: str) -> RowServer[Part]:
        return self._make_server(name, self._crews[0], History)

    def _start_ranks(self) -> None:
        crew = self._crews[-1]
        self.ranks = [Rank(self, number, crew) for number in range(crew.ranks)]

    @property
    def decided(self) -> int:
        return min(rank.pushed for rank in self.ranks)

    def points_after(self, step: int) -> tuple[int, ...]:
        """The two newest snapshots, once all ranks have done a step; each rank takes them at the same steps."""
        taken = sorted({*self.points, *(each for each in self._snapshots if self.points[-1] < each <= step)})
        return tuple(taken[-2:])

    @property
    def is_done(self) -> bool:
        return self.decided == STEPS

    def crew_in(self, step: int) -> RowCrew:
        """The crew whose pushes count in a step."""
        return next(crew for crew in reversed(self._crews) if crew.start < step)

    def expected_rows(self, slots: range, applied: int) -> tuple[Any, ...]:
        """For each slot, what was added up to a step, in order."""

        def words(slot: int, step: int) -> tuple[str, ...]:
            crew = self.crew_in(step)
            return tuple(pushed_part(range(slot, slot + 1), step, rank, crew.number)[0] for rank in range(crew.ranks))

        steps = [(step, verdict_of(step, self.crew_in(step).number)) for step in range(1, applied + 1)]
        return tuple(tuple((step, words(slot, step), verdict) for step, verdict in steps) for slot in slots)

    def run(self, limit: int = 20_000) -> None:
        """Many faults for a short time, or few for a long one; then none, and the ranks must finish."""
        rate, faulty = self.draw.choice([(0.1, 120), (0.04, 600)])
        for number in range(limit):
            if self.is_done:
                return
            self._event(rate if number < faulty else 0.0)
        raise AssertionError("the ranks do not finish")

    def _event(self, faults: float) -> None:
        chance = self.draw.random()
        if chance < faults:
            self._fault()
        elif chance < 0.75 and self.messages:
            self._deliver()
        elif chance < 0.85:
            self.messages += self.draw.choice(self.ranks).ask()
        elif chance < 0.9:
            self._if_it_runs(lambda server: server.remind())
        elif chance < 0.95:
            self._if_it_runs(lambda server: server.change_view(self.view))
        else:
            self._improve()
        if not faults:
            self.paused.clear()
        del self.messages[:-40]  # more are lost

    def _if_it_runs(self, act: Callable[[RowServer[Part]], list[Sent]]) -> None:
        name = self.draw.choice(SERVERS)
        if self._runs(name):
            self.messages += act(self.servers[name])

    def _runs(self, name: str) -> bool:
        return name not in self.paused and name not in self.crashed

    def _deliver(self) -> None:
        receiver, message = self.messages.pop(self.draw.randrange(len(self.messages)))
        if receiver.startswith("rank"):
            if int(receiver[4:]) < len(self.ranks):
                self.ranks[int(receiver[4:])].take(message)
        elif self._runs(receiver):
            self.messages += self.servers[receiver].take(message)
        elif receiver in self.paused:
            self.messages.append((receiver, message))

    def _fault(self) -> None:
        kind = self.draw.randrange(9)
        name = self.draw.choice(SERVERS)
        if kind == 0 and self.messages:
            self.messages.pop(self.draw.randrange(len(self.messages)))
        elif kind == 1 and self.messages:
            self.messages.append(self.draw.choice(self.messages))
        elif kind == 2:
            (self.paused.discard if name in self.paused else self.paused.add)(name)
        elif kind == 3 and self._may_lose(name):
            self.crashed.add(name)
            self.servers[name] = self._server(name)
            self._without(name)
        elif kind == 4 and self._may_lose(name):  # it is taken for dead, but it is not
            self._without(name)
        elif kind == 5:
            self._split_or_swap()
        elif kind == 6:
            self.points = self.points_after(self.decided)
        elif kind == 7:
            self._start_again()
        elif kind == 8:
            self._begin_anew()

    def _start_again(self) -> None:
        """All ranks end, and others, maybe more or fewer, begin from a step of which there is a snapshot."""
        self.points = self.points_after(self.decided)
        start = self.draw.choice(self.points)
        self.points = tuple(point for point in self.points if point <= start)
        self._crews.append(RowCrew(len(self._crews) + 1, self.draw.choice([1, 2, 3]), start))
        self._start_ranks()

    def _begin_anew(self) -> None:
        """All ranks end, and others begin with the first step on new rows, in pieces of servers that live."""
        living = [name for name in SERVERS if name not in self.crashed]
        if len(living) < 2:
            return
        begins = sorted({0, *self.draw.sample(range(SLOTS), 1)})
        pieces = {
            begin: Piece(end, *self.draw.sample(living, 2))
            for begin, end in zip(begins, [*begins[1:], SLOTS], strict=True)
        }
        self.view = View(self.view.epoch + 1, pieces, restarts=self.view.restarts + 1)
        self.points = (0,)
        self._crews.append(RowCrew(len(self._crews) + 1, self.draw.choice([1, 2, 3])))
        self._start_ranks()

    def _split_or_swap(self) -> None:
        """A piece is split, or its primary and backup change places."""
        begin, piece = self.draw.choice([*self.view.pieces.items()])
        if piece.end - begin > 1 and self.draw.random() < 0.5:
            at = self.draw.randrange(begin + 1, piece.end)
            self._change({begin: replace(piece, end=at), at: piece})
        elif piece.backup and piece.backup not in self.crashed:
            self._change({begin: Piece(piece.end, piece.backup, piece.primary)})

    def _change(self, pieces: dict[int, Piece]) -> None:
        self.view = replace(
            self.view, epoch=self.view.epoch + 1, pieces=dict(sorted({**self.view.pieces, **pieces}.items()))
        )

    def _may_lose(self, name: str) -> bool:
        """True if every piece has another copy. A rank that has lost both must be told, which is not simulated."""
        pieces = self.view.pieces.values()
        return all(
            piece.backup and piece.backup not in self.crashed for piece in pieces if piece.primary == name
        ) and all(piece.primary not in self.crashed for piece in pieces)

    def _without(self, name: str) -> None:
        """Change the view so that others take the place of a server."""
        pieces = {}
        for begin, piece in self.view.pieces.items():
            if piece.primary == name:
                piece = Piece(piece.end, piece.backup)
            elif name in (piece.backup, piece.joining):
                piece = Piece(piece.end, piece.primary, piece.backup if piece.backup != name else "")
            pieces[begin] = piece
        self._change(pieces)

    def _improve(self) -> None:
        """A server that has got its copy takes part; a piece without a backup gets one that joins, or it moves."""
        self.crashed -= {name for name in self.crashed if self.draw.random() < 0.5}  # it is started again, empty
        for name in SERVERS:
            server = self.servers[name]
            if not self._runs(name) or server.view.epoch != self.view.epoch:
                continue  # its compare-and-swap would fail
            for begin, joined in server.joined().items():
                piece = self.view.pieces[begin]
                choices = [(name, joined), (joined, name)]
                if piece.backup and piece.backup not in self.crashed:
                    choices.append((joined, piece.backup))
                self._change({begin: Piece(piece.end, *self.draw.choice(choices))})
                return
        for begin, piece in self.view.pieces.items():
            others = [name for name in SERVERS if name not in piece.servers and name not in self.crashed]
            moves = self.draw.random() < 0.1
            if (not piece.backup or moves) and not piece.joining and others:
                self._change({begin: replace(piece, joining=self.draw.choice(others), since=self.view.epoch + 1)})
                return


@pytest.mark.parametrize("seeds", [range(400), pytest.param(range(400, 100_000), marks=pytest.mark.slow)])
def test_ranks_get_the_rows_that_they_ask_for(seeds: range) -> None:
    for seed in seeds:
        try:
            World(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


class AnswersEarly(RowServer[Part]):
    """Confirms a push before the backup has it."""

    def _answer_push(self, piece: int, key: tuple[int, int]) -> list[Sent]:
        for server in self._others(piece):
            self._pieces[piece].confirmed.setdefault(server, set()).add(key)
        return super()._answer_push(piece, key)


class AnyEpoch(RowServer[Part]):
    """Takes messages of other views."""

    def take(self, message: Message) -> list[Sent]:
        return super().take(replace(message, epoch=self.view.epoch))


class AnyStep(RowServer[Part]):
    """Answers pulls with the rows that it has."""

    def _answer_pulls(self, piece: int, keys: Sequence[tuple[int, int, int]]) -> list[Sent]:
        own = self._pieces[piece]
        own.waiting = {key: replace(pull, step=own.log.applied + 1) for key, pull in own.waiting.items()}
        asked = {key: pull.step for key, pull in own.waiting.items()}
        answers = super()._answer_pulls(piece, keys)
        steps = {(rank, number): key_step for (key_step, rank, number) in asked}
        return [
            (receiver, replace(rows, step=steps[rows.rank, rows.number]))
            for receiver, rows in answers
            if isinstance(rows, Rows)
        ]


class KeepsRows(RowServer[Part]):
    """Goes on with its rows when all have begun anew."""

    def change_view(self, view: View) -> list[Sent]:
        return super().change_view(replace(view, restarts=0))


class SameCrew(RowServer[Part]):
    """Takes the messages of all crews for those of one."""

    def take(self, message: Message) -> list[Sent]:
        if isinstance(message, Push | Pull):
            message = replace(message, crew=replace(message.crew, number=1))
        return super().take(message)


def test_a_step_is_added_only_when_the_backup_has_it() -> None:
    """Also if its verdict comes early."""
    crew = RowCrew(1, 1)
    server = RowServer[Part]("a", crew, History)
    server.change_view(View(1, {0: Piece(1, "a", "b")}))
    about: dict[str, Any] = {"epoch": 1, "piece": 0, "sender": "rank0", "rank": 0, "crew": crew}
    ((receiver, _),) = server.take(Push(**about, step=1, part=("p",), received=1))
    assert receiver == "b"
    assert server.take(Pull(**about, step=2, verdicts={1: StepVerdict()}, received=1)) == []
    answers = server.take(Relayed(epoch=1, piece=0, sender="b", crew=1, step=1, rank=0))
    assert [type(answer) for _, answer in answers] == [Pushed, Rows]


def test_a_crew_is_told_that_its_rows_are_lost() -> None:
    """A server that has no rows cannot serve ranks that go on from a step."""
    server = RowServer[Part]("a", RowCrew(0, 0), History)
    server.change_view(View(1, {0: Piece(1, "a")}))
    pull = Pull(epoch=1, piece=0, sender="rank0", rank=0, crew=RowCrew(1, 1, start=5), step=6, received=5)
    ((_, refused),) = server.take(pull)
    assert isinstance(refused, Refused)
    assert refused.lost == 5


@pytest.mark.parametrize("broken", [AnswersEarly, AnyEpoch, AnyStep, SameCrew, KeepsRows])
def test_a_planted_fault_is_found(broken: type[RowServer[Part]]) -> None:
    for seed in range(1_000):
        try:
            World(seed, broken).run()
        except AssertionError:
            return
    raise AssertionError("no schedule has found the fault")

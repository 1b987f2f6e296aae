"""What one of 100 row servers does in a step of 1,000 ranks: `python benchmarks/params_scale.py --json`.

A simulation without a network: the server's real protocol, frames and store take in the frames of all ranks, one after
the other, and the seconds of the processor are counted by what they are spent on. The server has a hundredth of the
slots, with `--rows` rows (10^8 at full size; here as many as fit), and each rank asks it for `--per-rank` of them.
`grouped`: the same rows if the ranks of each host send one frame together.
"""

import argparse
import json
import time

import torch
from torch import Tensor

from onecurve.describe.slots import SLOTS, owned_slots
from onecurve.job.embedding import Embedding
from onecurve.job.row_optimizer import RowwiseAdagrad
from onecurve.job.row_point import StepVerdict
from onecurve.params.frame import HEADER_BYTES, decode, encode, lengths
from onecurve.params.messages import Message, Pull, Push
from onecurve.params.replication import RowServer
from onecurve.params.row_store import RowStore
from onecurve.params.served_rows import ServedRows
from onecurve.params.slots import slots_of
from onecurve.params.step_log import RowCrew
from onecurve.params.table_holder import Gradients
from onecurve.params.view import Piece, ServerAddress, View

SERVERS, RANKS, RANKS_PER_HOST, WIDTH = 100, 1_000, 8, 64


class Scale:
    """One server without a backup, and all its ranks."""

    def __init__(self, ranks: int, rows: int, per_rank: int) -> None:
        self._ranks, self._per_rank = ranks, per_rank
        slots = owned_slots(0, SERVERS)
        self._ids = ids_in(slots, rows)
        table = Embedding("user", WIDTH, RowwiseAdagrad(0.05))
        store = RowStore(table, 0, torch.float32)
        for part in self._ids.split(100_000):
            store.put(part, torch.zeros(len(part), WIDTH), torch.zeros(len(part), 1), 1)
        self._crew = RowCrew(1, ranks)
        self._server = RowServer[Gradients]("a", self._crew, lambda held, _: ServedRows(held, {"user": store}))
        pieces = {slots.start: Piece(slots.stop, "a"), slots.stop: Piece(SLOTS, "b")}
        self._server.change_view(View(1, pieces, {name: ServerAddress("", name) for name in "ab"}))
        self._piece = slots.start
        self._draw = torch.Generator().manual_seed(0)
        self.seconds = {"read": 0.0, "work": 0.0, "answer": 0.0}

    def step(self, number: int) -> None:
        """Pulls of all ranks, then pushes of all."""
        asked = [self._rows() for _ in range(self._ranks)]
        verdicts = {number - 1: StepVerdict()} if number > 1 else {}
        about = {"epoch": 1, "piece": self._piece, "step": number, "crew": self._crew, "verdicts": verdicts}
        for rank, ids in enumerate(asked):
            self._send(Pull(**about, sender=f"r{rank}", rank=rank, received=number - 1, ids={"user": ids}))
        for rank, ids in enumerate(asked):
            part = {"user": (ids, torch.ones(len(ids), WIDTH))}
            self._send(Push(**about, sender=f"r{rank}", rank=rank, received=number, part=part))

    def _rows(self) -> Tensor:
        chosen = torch.randint(len(self._ids), (self._per_rank,), generator=self._draw)
        return torch.unique(self._ids[chosen])

    def _send(self, message: Message) -> None:
        frame = b"".join(encode([message]))
        marks = [time.process_time()]
        body, _ = lengths(frame[:HEADER_BYTES])
        received = decode(frame[HEADER_BYTES : HEADER_BYTES + body], bytearray(frame[HEADER_BYTES + body :]))
        marks.append(time.process_time())
        answers = [sent for each in received for sent in self._server.take(each)]
        marks.append(time.process_time())
        for _, answer in answers:
            encode([answer])
        marks.append(time.process_time())
        for name, begin, end in zip(self.seconds, marks, marks[1:], strict=False):
            self.seconds[name] += end - begin


def ids_in(slots: range, count: int) -> Tensor:
    """The first ids whose slots are these."""
    found, begin = list[Tensor](), 0
    while sum(map(len, found)) < count:
        ids = torch.arange(begin, begin + 20_000_000)
        of_ids = slots_of(ids)
        found.append(ids[(of_ids >= slots.start) & (of_ids < slots.stop)])
        begin += len(ids)
    return torch.cat(found)[:count]


def measure(ranks: int, rows: int, per_rank: int, steps: int) -> dict[str, float]:
    scale = Scale(ranks, rows, per_rank)
    scale.step(1)
    scale.seconds = dict.fromkeys(scale.seconds, 0.0)
    for number in range(2, 2 + steps):
        scale.step(number)
    found = {f"{name}_ms": round(1e3 * seconds / steps, 1) for name, seconds in scale.seconds.items()}
    total = sum(scale.seconds.values()) / steps
    return {"frames": 2 * ranks, **found, "step_ms": round(1e3 * total, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--per-rank", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    hosts = RANKS // RANKS_PER_HOST
    found = {
        "alone": measure(RANKS, chosen.rows, chosen.per_rank, chosen.steps),
        "empty": measure(RANKS, chosen.rows, 0, chosen.steps),
        "grouped": measure(hosts, chosen.rows, RANKS_PER_HOST * chosen.per_rank, chosen.steps),
    }
    print(json.dumps(found) if chosen.json else found)


if __name__ == "__main__":
    main()

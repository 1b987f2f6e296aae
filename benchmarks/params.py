"""Rows of embedding tables per second: `python benchmarks/params.py --json`.

Real server processes on this host; the configurations are alternated step by step. A step pulls about 15,000 rows of 64
float32 numbers and pushes their gradients.
- `over_raw`: rows per second over those of servers that take and send the same frames, and store nothing.
- `over_grpc`: over those of the same store behind gRPC, without steps, copies and checks (needs `pip install grpcio`).
- `replicated_over_single`: two copies of each row over one, on the same two servers.
- `prefetch_gain`: the time of a step with staleness 0 over that with staleness 1; the step computes about as long as it
  would wait.
- `spilled_over_memory`: rows per second of a server with 1 GB of rows, most of them in a file, over one that has all in
  memory; ids with a Zipf law. A control group leaves 256 MB for rows and their index, besides the 210 MB of a server
  without rows. Needs root, and control groups of version 1.
"""

import argparse
import atexit
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from onecurve.job.batch import MicroBatch
from onecurve.job.embedding import Embedding
from onecurve.job.row_optimizer import RowwiseAdagrad
from onecurve.job.staleness import Staleness
from onecurve.launch.own_row_servers import OwnRowServers
from onecurve.params.served_tables import ServedTables
from onecurve.params.slots import owners_of, slots_of
from onecurve.params.tables import Tables
from onecurve.servers.rank_servers import RankServers
from onecurve.servers.settings import RowSettings

HERE = Path(__file__).parent
WIDTH, SERVERS, IDS, BATCHES, DRAWN = 64, 2, 1_000_000, 16, 40_000
_SPILLED_BYTES, _GROUP_BYTES, _ROW_BYTES = 1 << 30, (256 + 210) << 20, 1 << 23
"""Of all rows, of the control group, and of rows that the server keeps in memory by itself."""

Step = Callable[[Tensor, Tensor], None]


def batches(seed: int, ids: int = IDS, count: int = BATCHES) -> list[Tensor]:
    """Distinct ids, few of them in most batches."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.unique((ids ** torch.rand(DRAWN, generator=draw, dtype=torch.float64)).long()) for _ in range(count)]


def served(copies: int, program: Sequence[str] | None = None, count: int = SERVERS) -> ServedTables:
    """A table on servers of its own."""
    own = OwnRowServers()
    if program is not None:
        own.servers.program = program
    table = Embedding("user", WIDTH, RowwiseAdagrad(0.05))
    servers = RankServers(own.start(count), RowSettings.of([table], 0, torch.float32), count, copies)
    return ServedTables({"user": table}, servers, None, 0, torch.float32, lambda: None)


def step_of(holder: ServedTables) -> Step:
    holder.begin()

    def step(ids: Tensor, gradients: Tensor) -> None:
        holder.fetch("user", ids)
        holder.reduce({"user": (ids, gradients)})
        holder.update(1.0, 1.0)

    return step


class Grpc:
    """The same store behind gRPC, on as many processes."""

    def __init__(self) -> None:
        import grpc
        from grpc_row_server import METHODS, OPTIONS

        words = [sys.executable, str(HERE / "grpc_row_server.py"), str(WIDTH)]
        self._processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(SERVERS)]
        self._calls = []
        for process in self._processes:
            assert process.stdout is not None
            channel = grpc.insecure_channel(f"127.0.0.1:{process.stdout.readline().strip()}", options=OPTIONS)
            self._calls.append([channel.unary_unary(method) for method in METHODS])

    def step(self, ids: Tensor, gradients: Tensor) -> None:
        owners = owners_of(slots_of(ids), SERVERS)
        parts = [(owners == number).nonzero().squeeze(1) for number in range(SERVERS)]
        asked = [_request(ids[part]) for part in parts]
        answers = [pull.future(request) for (pull, _), request in zip(self._calls, asked, strict=True)]
        rows = torch.empty(ids.numel(), WIDTH)
        for part, answer in zip(parts, answers, strict=True):
            rows[part] = torch.from_numpy(np.frombuffer(answer.result(), np.float32).reshape(-1, WIDTH).copy())
        pushed = [
            push.future(_request(ids[part], gradients[part]))
            for (_, push), part in zip(self._calls, parts, strict=True)
        ]
        for answer in pushed:
            answer.result()

    def close(self) -> None:
        for process in self._processes:
            process.kill()


def _request(ids: Tensor, gradients: Tensor | None = None) -> bytes:
    body = np.int64(ids.numel()).tobytes() + ids.numpy().tobytes()
    return body if gradients is None else body + gradients.numpy().tobytes()


def alternate(steps: Mapping[str, Callable[[int], None]], rounds: int, warm: int) -> dict[str, list[float]]:
    """Seconds of each step, of all configurations in turn; the first rounds are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(warm + rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            step(number)
            seconds[name].append(time.perf_counter() - begin)
    return {name: each[warm:] for name, each in seconds.items()}


def ratio(seconds: Mapping[str, Sequence[float]], slow: str, fast: str) -> float:
    """How many times as fast the second one is."""
    return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def throughput(rounds: int) -> dict[str, float]:
    drawn = batches(1)
    gradients = [torch.randn(ids.numel(), WIDTH) for ids in drawn]
    holders = {
        "raw": served(1, [str(HERE / "bare_row_server.py")]),
        "single": served(1),
        "replicated": served(2),
    }
    steps = {name: step_of(holder) for name, holder in holders.items()}
    grpc = Grpc()
    steps["grpc"] = grpc.step

    def at(step: Step) -> Callable[[int], None]:
        return lambda number: step(drawn[number % BATCHES], gradients[number % BATCHES])

    seconds = alternate({name: at(step) for name, step in steps.items()}, rounds, warm=BATCHES)
    grpc.close()
    for holder in holders.values():
        holder.close()
    rows = statistics.mean(ids.numel() for ids in drawn)
    return {
        "rows_per_s": round(rows / statistics.median(seconds["single"])),
        "over_raw": ratio(seconds, "raw", "single"),
        "over_grpc": ratio(seconds, "grpc", "single"),
        "replicated_over_single": ratio(seconds, "single", "replicated"),
    }


class Model(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.user = Embedding("user", WIDTH, RowwiseAdagrad(0.05))
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth)), nn.Linear(WIDTH, 1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.user(ids)).sum()


class Training:
    """Steps of a model whose table is on servers."""

    def __init__(self, staleness: int, depth: int) -> None:
        self.model = Model(depth)
        self.tables = Tables(self.model, [served(1)], torch.float32, None, Staleness(staleness))
        self._batches = [[MicroBatch((ids,), None, ids.numel())] for ids in batches(2)]
        self._staleness = staleness

    def step(self, number: int) -> None:
        later = range(number + 1, number + 1 + self._staleness)
        upcoming = {step + 1: self._batches[step % BATCHES] for step in later}
        rounds = self._batches[number % BATCHES]
        self.tables.begin_step(number + 1, rounds, upcoming)
        self.model.zero_grad()
        self.model(*rounds[0].inputs).backward()
        self.tables.end_round(1.0)
        self.tables.reduce()
        self.tables.update(1.0, 1.0)


def prefetch_gain(rounds: int) -> dict[str, float]:
    trainings = {f"s={staleness}": Training(staleness, depth=6) for staleness in (0, 1)}
    seconds = alternate({name: training.step for name, training in trainings.items()}, rounds, warm=BATCHES)
    for training in trainings.values():
        training.tables.close()
    return {"prefetch_gain": ratio(seconds, "s=0", "s=1")}


def spilled_over_memory(rounds: int) -> dict[str, float]:
    """Fill two tables with all rows, then use them with a Zipf law."""
    group = Path(f"/sys/fs/cgroup/memory/onecurve-params-{os.getpid()}")
    group.mkdir()
    atexit.register(group.rmdir)  # after the servers, which begin later, have ended
    (group / "memory.limit_in_bytes").write_text(str(_GROUP_BYTES))
    ids = _SPILLED_BYTES // (4 * (WIDTH + 1))
    with tempfile.TemporaryDirectory() as folder:
        program = [str(HERE / "spilling_row_server.py"), folder, str(_ROW_BYTES), str(group)]
        holders = {"memory": served(1, count=1), "spilled": served(1, program, count=1)}
        steps = {name: step_of(holder) for name, holder in holders.items()}
        for part in torch.randperm(ids, generator=torch.Generator().manual_seed(4)).split(20_000):
            for step in steps.values():
                step(part, torch.ones(part.numel(), WIDTH))
        drawn = batches(3, ids, BATCHES + rounds)

        def at(step: Step) -> Callable[[int], None]:
            return lambda number: step(drawn[number], torch.ones(drawn[number].numel(), WIDTH))

        seconds = alternate({name: at(step) for name, step in steps.items()}, rounds, warm=BATCHES)
        for holder in holders.values():
            holder.close()
    return {"spilled_over_memory": ratio(seconds, "memory", "spilled")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", choices=["throughput", "prefetch_gain", "spilled_over_memory"])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for measure in (throughput, prefetch_gain, spilled_over_memory):
        if not chosen.only or measure.__name__ == chosen.only:
            found |= {name: round(value, 3) for name, value in measure(chosen.rounds).items()}
            print(found, file=sys.stderr, flush=True)
    print(json.dumps(found) if chosen.json else found)


if __name__ == "__main__":
    main()

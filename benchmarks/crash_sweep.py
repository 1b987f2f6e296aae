"""What is left of a checkpoint when the save is struck at every system call: ours, and torch's DCP beside it.

    python benchmarks/crash_sweep.py [--every N] [--json]

A process saves over a checkpoint that is already there; strace (Debian package `strace`) strikes it at the n-th write,
fsync, rename, mkdir, unlink or rmdir on the checkpoint's files: with SIGKILL, or by letting the call fail with ENOSPC
or EIO. Then somebody else reads what is there. `old` and `new` are whole; `mixed` is some of each; `lost` is nothing
that can be read. With two ranks each of them is the victim in turn. For DCP the folder is the same for all saves, as
its own `checkpoint_id` invites to.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from onecurve.checkpoint import saver as saver_room
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import ROOT, Standing, data_file, manifest_file
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import Saver
from onecurve.checkpoint.store import name_of
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.device.local_tensor import Box, LocalTensor

ROWS, TENSORS = 8, 3
LIFE = "5afe5afe"
CALLS = ("write", "fsync", "rename", "mkdir", "unlink", "unlinkat", "rmdir")
FAILING = ("write", "fsync")


@dataclass(frozen=True)
class Strike:
    """What happens at the n-th of some calls, in one of the ranks."""

    ranks: int
    victim: int
    kind: str
    """SIGKILL, ENOSPC or EIO."""
    call: str
    number: int

    @property
    def option(self) -> str:
        what = "signal=SIGKILL" if self.kind == "SIGKILL" else f"error={self.kind}"
        return f"{self.call}:{what}:when={self.number}"


class Ours:
    name = "onecurve"

    def files(self, folder: Path, ranks: int) -> list[Path]:
        """All that a save of version 2 over version 1 touches."""
        found = [folder]
        for version in (1, 2):
            name = name_of(version, token(version))
            for place in (folder / name, folder / f".{name}.part", folder / f".{name}.gone"):
                own = [file(rank) for rank in range(ranks) for file in (data_file, manifest_file)]
                found += [place, place / ROOT, *(place / each for each in own)]
        return found

    def save(self, folder: Path, rank: int, ranks: int, version: int, between: Callable[[], None]) -> list[str]:
        """What the user is told. Where something is, training goes on, and the next save is well."""
        group = dist.new_group(backend="gloo") if ranks > 1 else None
        plan = Plan(Mesh(shard=ranks))
        local_tensors, kept = state(version, rank, ranks)
        saver = self._saver(folder, group, plan, version)
        saver.save(local_tensors, kept, Standing(version, version))
        saver.wait()
        told = [take_events.text for take_events in saver.take_events() if take_events.event == "warning"]
        if told:
            between()
            saver.save(local_tensors, kept, Standing(version + 1, version + 1))
            saver.wait()
            told += [
                f"second: {take_events.text}" for take_events in saver.take_events() if take_events.event == "warning"
            ]
        return told

    def read(self, folder: Path) -> str:
        store = LocalStore(folder)
        for name in reversed(store.names()):
            local_tensors, _ = state(0, 0, 1)
            try:
                kept = Checkpoint(store, name).load(local_tensors, Mesh(), 0)
            except (CorruptedError, OSError):
                continue
            return judge([*(p.local for p in local_tensors), *(each["exp_avg"] for each in kept.values())])
        return "lost"

    def _saver(self, folder: Path, group: dist.ProcessGroup | None, plan: Plan, version: int) -> Saver:
        saver_room.secrets.token_hex = lambda _: LIFE
        saver = Saver(LocalStore(folder), group, local_device(0), plan, {}, Retention(last=1))
        saver._count = version
        return saver


class Stock:
    name = "dcp"

    def files(self, folder: Path, ranks: int) -> list[Path]:
        data = [folder / f"__{rank}_{n}.distcp" for rank in range(ranks) for n in range(2 * TENSORS)]
        return [folder, folder / ".metadata", folder / ".metadata.tmp", *data]

    def save(self, folder: Path, rank: int, ranks: int, version: int, _: Callable[[], None]) -> list[str]:
        try:
            dcp.save(self._state(version, rank), checkpoint_id=folder, no_dist=ranks == 1)
        except BaseException as error:
            return [f"{type(error).__name__}"]
        return []

    def read(self, folder: Path) -> str:
        try:
            saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
            found = {name: torch.zeros(ROWS, 4) for name in saved}
            dcp.load(found, checkpoint_id=folder, no_dist=True)
        except BaseException:  # CheckpointException is no Exception
            return "lost"
        return judge(list(found.values()))

    def _state(self, version: int, rank: int) -> dict[str, torch.Tensor]:
        """Each rank has tensors of its own, as DCP leaves replicated ones to one of them."""
        return {f"{rank}.{number}": torch.full((ROWS, 4), float(version)) for number in range(TENSORS)}


def token(count: int) -> str:
    return f"{LIFE}{count:08x}"


def state(version: int, rank: int, ranks: int) -> tuple[list[LocalTensor], dict[str, dict[str, torch.Tensor]]]:
    """Rows of three parameters, and one tensor of optimizer state for each, all of one value."""
    rows = ROWS // ranks
    box = Box((slice(rank * rows, (rank + 1) * rows), slice(0, 4)), (slice(0, rows), slice(0, 4)))
    local_tensors, kept = [], {}
    for number in range(TENSORS):
        local = nn.Parameter(torch.full((rows, 4), float(version)))
        local_tensors.append(
            LocalTensor(f"weight.{number}", local, local, (ROWS, 4), (box,), True, None, everywhere=False)
        )
        kept[f"weight.{number}"] = {"exp_avg": torch.full((rows, 4), float(version))}
    return local_tensors, kept


def judge(tensors: list[torch.Tensor]) -> str:
    values = {value for tensor in tensors for value in tensor.flatten().tolist()}
    return {(1.0,): "old", (2.0,): "new"}.get(tuple(sorted(values)), "mixed")


class UnusedParameterTrial:
    """One save, struck once, in processes forked from this one (which has torch loaded and no threads)."""

    def __init__(self, kind: Ours | Stock, template: Path, ranks: int) -> None:
        self._kind, self._template, self._ranks = kind, template, ranks

    def run(self, strike: Strike | None, trace: Path | None = None) -> tuple[list[str], list[str], bool]:
        """What is left after the save and after the next one, what the survivors were told, whether it was struck."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "checkpoints"
            shutil.copytree(self._template, folder)
            children = [self._fork(folder, Path(scratch), rank) for rank in range(self._ranks)]
            log = trace or Path(scratch) / "trace"
            tracer = self._attach(folder, children, strike, log)
            for child in children:
                os.kill(child, signal.SIGCONT)
            left = []

            def paused() -> None:
                """All ranks know of the failure: look at what is there, and let them go on unharmed."""
                tracer.send_signal(signal.SIGINT)
                tracer.wait(timeout=30)
                left.append(self._kind.read(folder))

            struck = self._await(children, strike, Path(scratch), paused)
            tracer.wait(timeout=30)
            left.append(self._kind.read(folder))
            told = [(Path(scratch) / f"told-{rank}") for rank in range(self._ranks)]
            texts = [line for path in told if path.exists() for line in json.loads(path.read_text())]
            return left, texts, struck or "(INJECTED)" in log.read_text()

    def _fork(self, folder: Path, scratch: Path, rank: int) -> int:
        child = os.fork()
        if child:
            os.waitpid(child, os.WUNTRACED)
            return child
        try:
            os.setpgid(0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            if self._ranks > 1:
                store = dist.FileStore(str(scratch / "store"), self._ranks)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=self._ranks)
            told = self._kind.save(folder, rank, self._ranks, 2, lambda: self._pause(scratch, rank))
            (scratch / f"told-{rank}").write_text(json.dumps(told))
        except BaseException as error:
            (scratch / f"told-{rank}").write_text(json.dumps([repr(error)]))
        finally:
            os._exit(0)

    def _pause(self, scratch: Path, rank: int) -> None:
        (scratch / f"paused-{rank}").touch()
        while not (scratch / "go").exists():
            time.sleep(0.01)

    def _attach(self, folder: Path, children: list[int], strike: Strike | None, log: Path) -> "subprocess.Popen[bytes]":
        traced = children if strike is None else [children[strike.victim]]
        command = ["strace", "-f", "-y", "-ttt", "-o", str(log), "-e", f"trace={','.join(CALLS)}"]
        for path in self._kind.files(folder, self._ranks):
            command += ["-P", str(path)]
        if strike is not None:
            command += ["-e", f"inject={strike.option}"]
        for child in traced:
            command += ["-p", str(child)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert tracer.stderr is not None
        for _ in traced:
            while b"attached" not in tracer.stderr.readline():
                pass
        return tracer

    def _await(self, children: list[int], strike: Strike | None, scratch: Path, paused: Callable[[], None]) -> bool:
        """Wait for all; what is left of a job when one rank was killed is ended by its launcher."""
        left, struck, deadline = set(children), False, None
        while left:
            for child in list(left):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    left.discard(child)
                    if os.WIFSIGNALED(status) and strike is not None and child == children[strike.victim]:
                        struck, deadline = True, time.monotonic() + 0.3
            if deadline is not None and time.monotonic() > deadline:
                for child in left:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                left = set()
            if len(list(scratch.glob("paused-*"))) == self._ranks and not (scratch / "go").exists():
                paused()
                (scratch / "go").touch()
            time.sleep(0.005)
        return struck


def template(kind: Ours | Stock, ranks: int, folder: Path) -> Path:
    """A checkpoint of version 1, as it is before each strike."""
    place = folder / f"{kind.name}-{ranks}"
    place.mkdir()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            try:
                if ranks > 1:
                    store = dist.FileStore(str(folder / f"store-{kind.name}"), ranks)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
                kind.save(place, rank, ranks, 1, lambda: None)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return place


def strikes(ranks: int, kinds: tuple[str, ...]) -> Iterator[Callable[[int], Strike]]:
    for victim in range(ranks):
        for kind in kinds:
            for call in CALLS if kind == "SIGKILL" else FAILING:
                yield lambda number, victim=victim, kind=kind, call=call: Strike(ranks, victim, kind, call, number)


def sweep(kind: Ours | Stock, ranks: int, kinds: tuple[str, ...], every: int, show: Callable[[str], None]) -> dict:
    """Strike at every call until no call is left to strike at."""
    found: dict[str, Counter[str]] = {each: Counter() for each in kinds}
    silent, bad = 0, []
    with tempfile.TemporaryDirectory() as folder:
        trial = UnusedParameterTrial(kind, template(kind, ranks, Path(folder)), ranks)
        for make in strikes(ranks, kinds):
            number = 1
            while True:
                strike = make(number)
                (left, *later), told, struck = trial.run(strike)
                if not struck:
                    break
                found[strike.kind][left] += 1
                silent += strike.kind != "SIGKILL" and not told
                if left in ("mixed", "lost") or later not in ([], ["new"]):
                    bad.append(f"{strike}: {left} {later} {told}")
                number += every
            last = make(number)
            show(f"{kind.name}, {ranks} rank(s), {last.kind} at {number - 1} {last.call} in rank {last.victim}")
    return {"left": {each: dict(counts) for each, counts in found.items()}, "not_told": silent, "bad": bad}


def order(ranks: int) -> list[tuple[str, str]]:
    """The calls of an unharmed save as (call, what on), in the order they were made by all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "trace"
        left, _, _ = UnusedParameterTrial(Ours(), template(Ours(), ranks, Path(folder)), ranks).run(None, log)
        assert left == ["new"], left
        return [call for call in map(_call, sorted(log.read_text().splitlines(), key=_when)) if call is not None]


def _when(line: str) -> float:
    return float(line.split()[1])


def _call(line: str) -> tuple[str, str] | None:
    words = line.split(None, 2)[2]
    name, _, rest = words.partition("(")
    if not rest:
        return None
    path = rest.partition("<")[2].partition(">")[0] if rest[0].isdigit() else rest.partition('"')[2].partition('"')[0]
    return name, "/".join(Path(path).parts[-2:]) if path.endswith((".json", ".safetensors")) else Path(path).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="strike at every n-th call only")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # DCP has much to say about being used
    show = (lambda _: None) if chosen.json else (lambda text: print(text, file=sys.stderr, flush=True))
    found = {}
    for ranks in (1, 2):
        found[f"onecurve_{ranks}"] = sweep(Ours(), ranks, ("SIGKILL", "ENOSPC", "EIO"), chosen.every, show)
        found[f"dcp_{ranks}"] = sweep(Stock(), ranks, ("SIGKILL",), chosen.every, show)
    if chosen.json:
        print(json.dumps(found))
        return
    for name, each in found.items():
        print(name, json.dumps(each["left"]), f"errors not told: {each['not_told']}")
        for line in each["bad"]:
            print("   ", line)


if __name__ == "__main__":
    main()

"""Injects a fault at every system call of a save and reports which checkpoint survives, for onecurve and PyTorch's DCP.

    python benchmarks/crash_sweep.py [--every N] [--json]

A process saves a second checkpoint where a first one exists. strace (Debian package `strace`) injects a fault into the
n-th write, fsync, rename, mkdir, unlink or rmdir on the checkpoint's files: it sends SIGKILL, or makes the call fail
with ENOSPC or EIO. Another process then reads the result. `old` and `new` are complete checkpoints; `mixed` contains
elements of both; `lost` means that nothing can be loaded. With two ranks, each is the victim in turn. DCP saves to the
same folder every time, as with a fixed `checkpoint_id`.
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

from onecurve.checkpoint import saver as saver_module
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import SavePoint, data_file, manifest_file
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import Saver
from onecurve.checkpoint.store import ROOT, name_of
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.device.local_tensor import Box, LocalTensor

ROWS, TENSORS = 8, 3
TOKEN_PREFIX = "5afe5afe"
KILLED_CALLS = ("write", "fsync", "rename", "mkdir", "unlink", "unlinkat", "rmdir")
FAILING_CALLS = ("write", "fsync")


@dataclass(frozen=True)
class Fault:
    """A fault at the `number`-th call of one kind, in one of the ranks."""

    ranks: int
    victim: int
    kind: str
    """SIGKILL, ENOSPC or EIO."""
    call: str
    number: int

    @property
    def strace_option(self) -> str:
        effect = "signal=SIGKILL" if self.kind == "SIGKILL" else f"error={self.kind}"
        return f"{self.call}:{effect}:when={self.number}"


class Onecurve:
    """Saves and loads with onecurve."""

    name = "onecurve"

    def files(self, folder: Path, ranks: int) -> list[Path]:
        """Return every path that a save of version 2 touches when version 1 exists."""
        paths = [folder]
        for version in (1, 2):
            name = name_of(version, token(version))
            for checkpoint in (folder / name, folder / f".{name}.part", folder / f".{name}.gone"):
                files = [file(rank) for rank in range(ranks) for file in (data_file, manifest_file)]
                paths += [checkpoint, checkpoint / ROOT, *(checkpoint / file for file in files)]
        return paths

    def save(self, folder: Path, rank: int, ranks: int, version: int, pause: Callable[[], None]) -> list[str]:
        """Save, and return the warnings. After a warning, call `pause` and save again, as training would."""
        group = dist.new_group(backend="gloo") if ranks > 1 else None
        plan = Plan(Mesh(shard=ranks))
        local_tensors, optimizer_state = state(version, rank, ranks)
        saver = self._saver(folder, group, plan, version)
        saver.save(local_tensors, optimizer_state, SavePoint(version))
        saver.wait()
        reported = [event.text for event in saver.take_events() if event.event == "warning"]
        if reported:
            pause()
            saver.save(local_tensors, optimizer_state, SavePoint(version + 1))
            saver.wait()
            reported += [f"second save: {event.text}" for event in saver.take_events() if event.event == "warning"]
        return reported

    def read(self, folder: Path) -> str:
        store = LocalStore(folder)
        for name in reversed(store.names()):
            local_tensors, _ = state(0, 0, 1)
            try:
                optimizer_states = Checkpoint(store, name).load(local_tensors, Mesh(), 0)
            except (CorruptedError, OSError):
                continue
            parameters = [local_tensor.local for local_tensor in local_tensors]
            return classify([*parameters, *(states["exp_avg"] for states in optimizer_states.values())])
        return "lost"

    def _saver(self, folder: Path, group: dist.ProcessGroup | None, plan: Plan, version: int) -> Saver:
        saver_module.secrets.token_hex = lambda _: TOKEN_PREFIX  # strace needs the names of the files beforehand
        saver = Saver(LocalStore(folder), group, local_device(0), plan, {}, Retention(last=1))
        saver._count = version
        return saver


class Dcp:
    """Saves and loads with torch.distributed.checkpoint."""

    name = "dcp"

    def files(self, folder: Path, ranks: int) -> list[Path]:
        data = [folder / f"__{rank}_{number}.distcp" for rank in range(ranks) for number in range(2 * TENSORS)]
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
            tensors = {name: torch.zeros(ROWS, 4) for name in saved}
            dcp.load(tensors, checkpoint_id=folder, no_dist=True)
        except BaseException:  # CheckpointException does not derive from Exception
            return "lost"
        return classify(list(tensors.values()))

    def _state(self, version: int, rank: int) -> dict[str, torch.Tensor]:
        """Different tensors for each rank, because DCP lets only one rank write a replicated tensor."""
        return {f"{rank}.{number}": torch.full((ROWS, 4), float(version)) for number in range(TENSORS)}


def token(count: int) -> str:
    return f"{TOKEN_PREFIX}{count:08x}"


def state(version: int, rank: int, ranks: int) -> tuple[list[LocalTensor], dict[str, dict[str, torch.Tensor]]]:
    """Return one rank's rows of three parameters and of their optimizer state; every element equals `version`."""
    rows = ROWS // ranks
    box = Box((slice(rank * rows, (rank + 1) * rows), slice(0, 4)), (slice(0, rows), slice(0, 4)))
    local_tensors, optimizer_state = [], {}
    for number in range(TENSORS):
        name = f"weight.{number}"
        local = nn.Parameter(torch.full((rows, 4), float(version)))
        local_tensors.append(
            LocalTensor(
                name=name,
                registered=local,
                local=local,
                shape=(ROWS, 4),
                boxes=(box,),
                is_first_holder=True,
                group=None,
                is_replicated_everywhere=False,
            )
        )
        optimizer_state[name] = {"exp_avg": torch.full((rows, 4), float(version))}
    return local_tensors, optimizer_state


def classify(tensors: list[torch.Tensor]) -> str:
    values = {value for tensor in tensors for value in tensor.flatten().tolist()}
    return {(1.0,): "old", (2.0,): "new"}.get(tuple(sorted(values)), "mixed")


class Trial:
    """One save with at most one fault, in processes forked from this one (which has torch loaded and no threads)."""

    def __init__(self, system: Onecurve | Dcp, template: Path, ranks: int) -> None:
        self._system, self._template, self._ranks = system, template, ranks

    def run(self, fault: Fault | None, trace: Path | None = None) -> tuple[list[str], list[str], bool]:
        """Return what survives the save and, if there is one, the second save; the reported errors; and True if the
        fault was injected."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "checkpoints"
            shutil.copytree(self._template, folder)
            children = [self._fork(folder, Path(scratch), rank) for rank in range(self._ranks)]
            log = trace or Path(scratch) / "trace"
            tracer = self._attach(folder, children, fault, log)
            for child in children:
                os.kill(child, signal.SIGCONT)
            results = []

            def on_pause() -> None:
                """All ranks have reported the failure: read the result, and detach strace before the second save."""
                tracer.send_signal(signal.SIGINT)
                tracer.wait(timeout=30)
                results.append(self._system.read(folder))

            killed = self._wait(children, fault, Path(scratch), on_pause)
            tracer.wait(timeout=30)
            results.append(self._system.read(folder))
            reports = [(Path(scratch) / f"reported-{rank}") for rank in range(self._ranks)]
            reported = [text for path in reports if path.exists() for text in json.loads(path.read_text())]
            return results, reported, killed or "(INJECTED)" in log.read_text()

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
            reported = self._system.save(folder, rank, self._ranks, 2, lambda: self._pause(scratch, rank))
            (scratch / f"reported-{rank}").write_text(json.dumps(reported))
        except BaseException as error:
            (scratch / f"reported-{rank}").write_text(json.dumps([repr(error)]))
        finally:
            os._exit(0)

    def _pause(self, scratch: Path, rank: int) -> None:
        (scratch / f"paused-{rank}").touch()
        while not (scratch / "go").exists():
            time.sleep(0.01)

    def _attach(self, folder: Path, children: list[int], fault: Fault | None, log: Path) -> "subprocess.Popen[bytes]":
        traced = children if fault is None else [children[fault.victim]]
        command = ["strace", "-f", "-y", "-ttt", "-o", str(log), "-e", f"trace={','.join(KILLED_CALLS)}"]
        for path in self._system.files(folder, self._ranks):
            command += ["-P", str(path)]
        if fault is not None:
            command += ["-e", f"inject={fault.strace_option}"]
        for child in traced:
            command += ["-p", str(child)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert tracer.stderr is not None
        for _ in traced:
            while b"attached" not in tracer.stderr.readline():
                pass
        return tracer

    def _wait(self, children: list[int], fault: Fault | None, scratch: Path, on_pause: Callable[[], None]) -> bool:
        """Wait for all ranks; if the victim was killed, kill the others as a launcher would, and return True."""
        running, killed, deadline = set(children), False, None
        while running:
            for child in list(running):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    running.discard(child)
                    if os.WIFSIGNALED(status) and fault is not None and child == children[fault.victim]:
                        killed, deadline = True, time.monotonic() + 0.3
            if deadline is not None and time.monotonic() > deadline:
                for child in running:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                running = set()
            if len(list(scratch.glob("paused-*"))) == self._ranks and not (scratch / "go").exists():
                on_pause()
                (scratch / "go").touch()
            time.sleep(0.005)
        return killed


def make_template(system: Onecurve | Dcp, ranks: int, folder: Path) -> Path:
    """Save a checkpoint of version 1, which every trial starts from."""
    template = folder / f"{system.name}-{ranks}"
    template.mkdir()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            try:
                if ranks > 1:
                    store = dist.FileStore(str(folder / f"store-{system.name}"), ranks)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
                system.save(template, rank, ranks, 1, lambda: None)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return template


def fault_series(ranks: int, kinds: tuple[str, ...]) -> Iterator[Callable[[int], Fault]]:
    """Yield, for each victim, kind and call, a function from the number of the call to the fault."""
    for victim in range(ranks):
        for kind in kinds:
            for call in KILLED_CALLS if kind == "SIGKILL" else FAILING_CALLS:
                yield lambda number, victim=victim, kind=kind, call=call: Fault(ranks, victim, kind, call, number)


def sweep(system: Onecurve | Dcp, ranks: int, kinds: tuple[str, ...], every: int, show: Callable[[str], None]) -> dict:
    """Inject a fault at every `every`-th call of a save, and count the results."""
    results: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    unreported, bad = 0, []
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(system, make_template(system, ranks, Path(folder)), ranks)
        for make_fault in fault_series(ranks, kinds):
            number = 1
            while True:
                fault = make_fault(number)
                (result, *later), reported, injected = trial.run(fault)
                if not injected:  # the save has fewer calls than `number`
                    break
                results[fault.kind][result] += 1
                unreported += fault.kind != "SIGKILL" and not reported
                if result in ("mixed", "lost") or later not in ([], ["new"]):
                    bad.append(f"{fault}: {result} {later} {reported}")
                number += every
            last = make_fault(number)
            show(f"{system.name}, {ranks} rank(s), {last.kind} at {number - 1} {last.call} in rank {last.victim}")
    return {"left": {kind: dict(counts) for kind, counts in results.items()}, "not_told": unreported, "bad": bad}


def call_order(ranks: int) -> list[tuple[str, str]]:
    """Return the system calls of a save without faults as (call, file), in the order in which all ranks made them."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "trace"
        results, _, _ = Trial(Onecurve(), make_template(Onecurve(), ranks, Path(folder)), ranks).run(None, log)
        assert results == ["new"], results
        lines = sorted(log.read_text().splitlines(), key=_timestamp)
        return [call for call in map(_parse_call, lines) if call is not None]


def _timestamp(line: str) -> float:
    return float(line.split()[1])


def _parse_call(line: str) -> tuple[str, str] | None:
    text = line.split(None, 2)[2]
    name, _, rest = text.partition("(")
    if not rest:
        return None
    path = rest.partition("<")[2].partition(">")[0] if rest[0].isdigit() else rest.partition('"')[2].partition('"')[0]
    return name, "/".join(Path(path).parts[-2:]) if path.endswith((".json", ".safetensors")) else Path(path).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="inject a fault at every N-th call only", metavar="N")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # DCP warns on every call
    show = (lambda _: None) if arguments.json else (lambda text: print(text, file=sys.stderr, flush=True))
    sweeps = {}
    for ranks in (1, 2):
        sweeps[f"onecurve_{ranks}"] = sweep(Onecurve(), ranks, ("SIGKILL", "ENOSPC", "EIO"), arguments.every, show)
        sweeps[f"dcp_{ranks}"] = sweep(Dcp(), ranks, ("SIGKILL",), arguments.every, show)
    if arguments.json:
        print(json.dumps(sweeps))
        return
    for name, result in sweeps.items():
        print(name, json.dumps(result["left"]), f"unreported errors: {result['not_told']}")
        for line in result["bad"]:
            print("   ", line)


if __name__ == "__main__":
    main()

"""Train the cases of tests/jobs/hand_written with onecurve and by hand, and compare all weights.

`python tests/hand_loops.py [FILE[:CASE[,CASE]]] [PLAN…]` prints one line per case and plan, and counts them at the end.
A plan is one of the names in PLANS, or a plan's text. The ranks are forked from this process, which has imported torch,
and meet as under torchrun: that takes about a second. `--serve` reads requests from standard input, for the tests.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jobs.hand_written.common import Case

FOLDER = Path(__file__).parent / "jobs" / "hand_written"

PLANS: dict[str, str] = {
    "mb": "mb{all} fp64",
    "accumulation": "mb{half}×2 fp64",
    "replicate": "replicate2 mb({more},{less}) fp64",
    "shard": "shard2 mb{half} fp64",
    "tensor": "tensor2 mb{all} fp64",
    "pipeline": "pipeline2 mb{half}×2 fp64",
}
"""The plans of the full matrix; the shares follow from the case's batch."""

LIMIT = 1e-9
"""Largest relative difference of a tensor that trained the same, in float64."""
_PRELOADED = (
    "onecurve.verbs.run",
    "onecurve.verbs.run_worker",
    "onecurve.verbs.plan_checker",
    "onecurve.apply.pipeline",
    "onecurve.apply.single_stage",
    "torch._dynamo",
    "torch.distributed._tools",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
"""What a rank imports, which takes seconds; so it is imported once, before the ranks are forked."""
_TIMEOUT = 120
"""Seconds after which a run counts as hung."""
_GRACE = 20
"""Seconds that the other ranks have to end after one has failed."""

Kind = Literal["equal", "refused", "differs", "crashed"]


@dataclass(frozen=True)
class Outcome:
    """How a case ended under a plan."""

    kind: Kind
    difference: float = 0.0
    """Largest relative difference of a tensor."""
    text: str = ""
    """Which tensor differs most; or the message of a refusal; or the end of the traceback."""
    steps: int = 0
    """Steps that were trained."""
    seconds: float = 0.0

    def __str__(self) -> str:
        shown = self.text.strip().replace("\n", " ⏎ ")
        difference = f"{self.difference:.1e} " if self.kind in ("equal", "differs") else f"step {self.steps} "
        return f"{self.kind:8} {difference}{shown} ({self.seconds:.1f} s)"


def unexpected(case: "Case", plan: str, outcome: Outcome) -> str:
    """Say what is wrong with an outcome; "" if it is equal, or a refusal that the case allows."""
    if outcome.kind == "equal":
        return ""
    allowed = [pattern for prefix, pattern in case.refused.items() if plan.startswith(prefix)]
    if outcome.kind != "refused":
        return f"{plan} {outcome}"
    if not any(re.search(pattern, outcome.text, re.DOTALL) for pattern in allowed):
        return f"{plan} {outcome}: the case expects {allowed or 'no refusal'}"
    if outcome.steps > case.refused_after:
        return f"{plan} {outcome}: refused only after {outcome.steps} steps"
    return ""


def plan_text(plan: str, batch: int) -> str:
    """The text of a plan that is given by its name."""
    half, more = batch // 2, batch * 5 // 8
    return PLANS.get(plan, plan).format(all=batch, half=half, more=more, less=batch - more)


def files() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("common", "composed"))


@cache
def cases_of(file: str) -> "dict[str, Case]":
    """The cases of a file. It is imported under its own name, as onecurve does with a script."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    path = FOLDER / f"{file}.py"
    spec = importlib.util.spec_from_file_location(file, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file] = module
    spec.loader.exec_module(module)
    return module.CASES


def plans_of(case: "Case") -> list[str]:
    """The names of the plans that a case is trained under."""
    return [plan for plan in PLANS if not any(plan.startswith(prefix) for prefix in case.not_compared)]


class Laboratory:
    """Trains cases in processes that are forked from this one; nothing remains of them but their weights."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        for module in _PRELOADED:
            importlib.import_module(module)

    def outcome(self, file: str, name: str, plan: str) -> Outcome:
        """Train a case under a plan, and in its hand-written loop; compare them."""
        case = cases_of(file)[name]
        text = plan_text(plan, case.batch)
        run = self._folder / f"{file}-{name}-{re.sub('[^a-z0-9]+', '_', text)}"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        begin = time.monotonic()
        try:
            outcome = self._train(file, name, text, run) or self._compared(file, name, text, run)
        finally:
            shutil.rmtree(run, ignore_errors=True)
        return Outcome(**{**asdict(outcome), "seconds": time.monotonic() - begin})

    def _train(self, file: str, name: str, plan: str, run: Path) -> Outcome | None:
        """Train with onecurve; return None if all ranks have ended well."""
        import onecurve as oc

        ranks, port = oc.Plan.parse(plan).mesh.size, _free_port()

        def rank_main(rank: int) -> None:
            if ranks > 1:
                os.environ.update(_torchrun_environment(rank, ranks, port))
            try:
                oc.run(str(FOLDER / f"{file}.py"), [f"case={name}"], plan=plan, out=run / "out")
            except oc.OnecurveError as error:
                kind = "refused" if not _is_users_fault(error) else "crashed"
                (run / f"error-{rank}").write_text(json.dumps([kind, _message(error)]))
                raise

        codes = _forked(ranks, rank_main, lambda rank: run / f"log-{rank}")
        if codes == [0] * ranks:
            return None
        return _failure(codes, run)

    def _compared(self, file: str, name: str, plan: str, run: Path) -> Outcome:
        import torch
        from safetensors.torch import load_file

        import onecurve as oc

        expected_file = run / "by_hand.pt"

        def by_hand(_rank: int) -> None:
            torch.set_num_threads(1)
            weights = cases_of(file)[name].trained_by_hand(oc.Plan.parse(plan))
            torch.save(weights.state_dict() if isinstance(weights, torch.nn.Module) else weights, expected_file)

        if _forked(1, by_hand, lambda _: run / "log-hand") != [0]:
            return Outcome("crashed", text="the hand-written loop: " + _end(run / "log-hand"))
        expected = torch.load(expected_file, weights_only=True)
        return compared(load_file(run / "out" / "weights.safetensors"), expected)


def compared(trained: dict[str, Any], expected: dict[str, Any]) -> Outcome:
    """Compare two state dicts. Of tensors that share memory, a file needs only one."""
    worst, place = 0.0, ""
    names_of = {}
    for name, value in expected.items():
        names_of.setdefault((value.data_ptr(), value.shape, value.stride()) if value.numel() else name, []).append(name)
    for names in names_of.values():
        held = [name for name in names if name in trained]
        if not held:
            return Outcome("differs", float("inf"), f"{names[0]} is missing in the weights")
        for name in held:
            difference = _difference(trained[name], expected[name])
            if not difference <= worst:
                worst, place = difference, name
    if extra := trained.keys() - expected.keys():
        return Outcome("differs", float("inf"), f"{sorted(extra)[0]} is in the weights, but not in the model")
    return Outcome("equal" if worst <= LIMIT else "differs", worst, place if worst > LIMIT else "")


def _difference(value: Any, expected: Any) -> float:
    import torch

    if value.shape != expected.shape:
        return float("inf")
    if not value.numel():
        return 0.0
    kind = torch.complex128 if expected.is_complex() else torch.float64
    value, expected = value.to(kind), expected.to(kind)
    difference = (value - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    return difference if difference == difference else float("inf")


def _forked(count: int, main: Callable[[int], None], log: Callable[[int], Path]) -> list[int | str]:
    """Run `main` in forked processes; return their exit codes, or "hung"."""
    pids = [_fork(rank, main, log(rank)) for rank in range(count)]
    codes: dict[int, int | str] = {}
    deadline = time.monotonic() + _TIMEOUT
    while len(codes) < count:
        for rank, pid in enumerate(pids):
            if rank not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(ended[1])
                if codes[rank] != 0:
                    deadline = min(deadline, time.monotonic() + _GRACE)
        if time.monotonic() > deadline:
            for rank in range(count):
                if rank not in codes:
                    os.kill(pids[rank], signal.SIGKILL)
                    os.waitpid(pids[rank], 0)
                    codes[rank] = "hung"
        time.sleep(0.02)
    return [codes[rank] for rank in range(count)]


def _fork(rank: int, main: Callable[[int], None], log: Path) -> int:
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 3
    try:
        output = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(output, stream)
        main(rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _failure(codes: Sequence[int | str], run: Path) -> Outcome:
    """What ended a run: a refusal of any rank, rather than what it did to the others."""
    records = run / "out" / "records" / "rank-0.jsonl"
    steps = records.read_text().count('"kind":"step"') if records.exists() else 0
    errors = [json.loads(file.read_text()) for file in sorted(run.glob("error-*"))]
    for kind, text in sorted(errors, key=lambda error: error[0] != "refused"):
        return Outcome(kind, text=text, steps=steps)
    rank = next(rank for rank, code in enumerate(codes) if code != 0)
    return Outcome("crashed", text=f"rank {rank}: {codes[rank]}: {_end(run / f'log-{rank}')}", steps=steps)


def _is_users_fault(error: Exception) -> bool:
    from onecurve.describe.errors import UserCodeError

    return isinstance(error, UserCodeError)


def _message(error: Exception) -> str:
    cause = f" ← {type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ is not None else ""
    return f"{error}{cause}"


def _end(log: Path) -> str:
    """The last lines of a log; without the lines of the C++ stack, which follow a torch error."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
    return (raised or lines or ["no output"])[-1][:600]


def _torchrun_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "hand_loops",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class LaboratoryProcess:
    """A process that trains cases: nothing that a test has done with torch is forked along."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def outcome(self, file: str, name: str, plan: str) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([file, name, plan]) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def laboratory() -> Iterator[Laboratory]:
    with tempfile.TemporaryDirectory(prefix="hand_loops") as folder:
        yield Laboratory(Path(folder))


def serve() -> None:
    """Answer requests `[file, case, plan]`, one per line, with an outcome each."""
    with laboratory() as lab:
        for line in sys.stdin:
            print(json.dumps(asdict(lab.outcome(*json.loads(line)))), flush=True)


def main(arguments: Sequence[str]) -> int:
    """Print the outcomes of a file's cases, or of all, under some plans or all; return 1 if one is not as expected."""
    selected, plans = "", list(arguments)
    if plans and plans[0].partition(":")[0] in [*files(), "composed"]:
        selected = plans.pop(0)
    chosen_file, _, chosen_cases = selected.partition(":")
    counts: Counter[str] = Counter()
    faults = 0
    with laboratory() as lab:
        for file in [chosen_file] if chosen_file else files():
            for name in chosen_cases.split(",") if chosen_cases else cases_of(file):
                case = cases_of(file)[name]
                for plan in plans or plans_of(case):
                    outcome = lab.outcome(file, name, plan)
                    wrong = unexpected(case, plan, outcome)
                    counts[outcome.kind] += 1
                    faults += bool(wrong)
                    print(f"{'✗' if wrong else ' '} {file}:{name:32} {plan:12} {outcome}", flush=True)
    print(", ".join(f"{counts[kind]} {kind}" for kind in ("equal", "refused", "differs", "crashed")))
    print(f"{faults} not as the cases expect" if faults else "all as the cases expect")
    return 1 if faults else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(main(sys.argv[1:]))

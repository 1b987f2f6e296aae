"""Does `onecurve why` name what makes a run slow, and is the gain that it promises measured after the change?

`python benchmarks/why.py --json` prints for each fault whether it was `named`, the gain that was `promised` and the one
that was `measured`: fractions of the time of a step. `--only NAME,…` runs some of them. `sum_error`: the largest
difference between the wall time of a run and the sum of its causes, as a fraction, over examples and plans of each
axis. `cost`: what recording costs, as a fraction of a step. `false_alarms`: findings about runs that are planned well.

Two cores are needed, and root for faults on emulated hosts and control groups.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos_ranks import quota
from namespaces import emulated_hosts
from overhead import recording, with_interval
from why_job import stored_files

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from object_store import ObjectStore, object_store
from onecurve.describe.plan import Plan
from onecurve.describe.record import StepRecord
from onecurve.diagnose.history_reader import read_history
from onecurve.diagnose.wall_time import wall_time
from onecurve.runs.records import read_records

HERE = Path(__file__).parent
JOB = HERE / "why_job.py"
EXAMPLES = HERE.parent / "examples"
PLANS = ("mb32", "replicate2 mb16", "shard2 mb16", "tensor2 mb32", "pipeline2 mb8×4", "mb8×4 recompute=full")
_TIMEOUT = 240.0
_STORE_RATE = 4e6
"""Bytes per second of one answer of the object store."""


@dataclass(frozen=True)
class Setting:
    """How a run is started."""

    arguments: tuple[str, ...] = ()
    plan: str = ""
    quota: float = 1.0
    """Fraction of its core that rank 1 gets."""
    rate: str = ""
    """Rate of the link between two hosts, as tc writes it; empty: one host."""


@dataclass(frozen=True)
class Fault:
    """A run that is slow, and which cause `why` should name."""

    slow: Setting
    cause: str
    mend: Callable[[Setting, dict[str, Any]], Setting]
    """(setting, finding) → the setting after the change that the finding suggests."""
    is_late: bool = False
    """True if the change helps only after a while: the last third of the steps is compared."""


def with_arguments(*arguments: str) -> Callable[[Setting, dict[str, Any]], Setting]:
    """The change is this, whatever its details are."""

    def mend(setting: Setting, _: dict[str, Any]) -> Setting:
        names = {argument.partition("=")[0] for argument in arguments}
        kept = tuple(each for each in setting.arguments if each.partition("=")[0] not in names)
        return replace(setting, arguments=(*kept, *arguments))

    return mend


def with_job(**names: str) -> Callable[[Setting, dict[str, Any]], Setting]:
    """The change is the field of the job that the finding names; `names`: argument of the job → field."""

    def mend(setting: Setting, finding: dict[str, Any]) -> Setting:
        values = [f"{argument}={finding['job'][field]}" for argument, field in names.items()]
        return with_arguments(*values)(setting, finding)

    return mend


def with_plan(setting: Setting, finding: dict[str, Any]) -> Setting:
    return replace(setting, plan=finding["plan"])


def with_cache(setting: Setting, finding: dict[str, Any]) -> Setting:
    return with_arguments(f"cache={tempfile.mkdtemp()}")(setting, finding)


def without_quota(setting: Setting, _: dict[str, Any]) -> Setting:
    return replace(setting, quota=1.0)


FAULTS = {
    "loader": Fault(Setting(("sleep=0.004",), "replicate2 mb16"), "data", with_job(workers="workers")),
    "uneven": Fault(
        Setting(("uneven=65", "batch=8", "width=768", "steps=100"), "replicate2 mb4"),
        "uneven_samples",
        with_arguments("uneven=0", "work=9.0"),
    ),
    "half_cpu": Fault(Setting(("width=512",), "", quota=0.5), "slow_rank", without_quota),
    "link": Fault(Setting(("steps=40",), "replicate2 mb16", rate="100mbit"), "communication", with_plan),
    "micro_batch": Fault(Setting(("batch=64",), "replicate2 mb1×32"), "micro_batch", with_plan),
    "checkpoint": Fault(
        Setting(("save_every=1", "width=512"), "replicate2 mb16"), "checkpoint", with_job(save_every="save_every")
    ),
    "pipeline": Fault(Setting(("batch=64", "width=512"), "pipeline2 mb32×2"), "pipeline", with_plan),
    "item": Fault(
        Setting(("items=True", "width=768", "batch=64"), "replicate2 mb32"),
        "host_reads",
        with_arguments("items=False"),
    ),
    "store": Fault(Setting(("store=True", "steps=64"), "replicate2 mb16"), "storage", with_cache, is_late=True),
    "batch_norm": Fault(
        Setting(("norms=True", "depth=32", "width=16", "steps=40"), "replicate2 mb16", rate="2mbit"),
        "batch_norm",
        with_plan,
    ),
    "threads": Fault(
        Setting(("threads=16", "width=512", "batch=128"), "replicate2 mb64"), "threads", with_arguments("threads=0")
    ),
}


class Lab:
    """Runs settings in a folder of its own."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._folder, self._store, self._runs = folder, store, 0
        for name, content in stored_files():
            store.put(name, content)
        command = [sys.executable, "-m", "onecurve", "index", "s3://bucket/train/"]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True)
        store.faults.rate = _STORE_RATE

    def diagnosis(self, setting: Setting) -> dict[str, Any]:
        """Run, and return what `onecurve why --json` says."""
        out = self.run(setting)
        steps = [record for record in read_records(out) if isinstance(record, StepRecord)]
        late = [sum(step.seconds.values()) for step in steps[-len(steps) // 3 :]]
        return {**self.why(out), "late_step_seconds": sum(late) / len(late)}

    def why(self, out: Path) -> dict[str, Any]:
        command = [sys.executable, "-m", "onecurve", "why", str(out), "--json"]
        answer = subprocess.run(
            command, env=self._environment(), check=True, capture_output=True, text=True, timeout=_TIMEOUT
        )
        return json.loads(answer.stdout)

    def timed_run(self, command: Sequence[str]) -> tuple[Path, float]:
        """Run; return the folder, and the seconds that the command took."""
        self._runs += 1
        out = self._folder / f"run-{self._runs}"
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "onecurve", "run", *command, "--out", str(out)],
            env=self._environment(),
            check=True,
            capture_output=True,
        )
        return out, time.perf_counter() - begin

    def run(self, setting: Setting) -> Path:
        self._runs += 1
        out = self._folder / f"run-{self._runs}"
        command = [sys.executable, "-m", "onecurve", "run", str(JOB), *setting.arguments, "--out", str(out)]
        command += ["--plan", setting.plan] if setting.plan else ["--ranks", "2"]
        if setting.rate:
            self._run_on_hosts(command, setting)
        else:
            process = subprocess.Popen(command, env=self._environment(), stdout=subprocess.PIPE, text=True)
            with _slow_rank(out, setting.quota):
                output, _ = process.communicate(timeout=_TIMEOUT)
            if process.returncode:
                raise SystemExit(f"{' '.join(command)}: status {process.returncode}\n{output}")
        return out

    def _run_on_hosts(self, command: Sequence[str], setting: Setting) -> None:
        count = min(2, Plan.parse(setting.plan).mesh.size)
        command = [*command, "--hosts", str(count)] if count > 1 else [*command]
        with emulated_hosts(count, setting.rate, [1.0] * count) as hosts:
            processes = [
                subprocess.Popen(
                    host.command(command),
                    env=self._environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for host in hosts
            ]
            outputs = [process.communicate(timeout=_TIMEOUT)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("\n".join([" ".join(command), *outputs]))

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._store.environment}


@contextmanager
def _slow_rank(out: Path, share: float) -> Iterator[None]:
    """Give rank 1 a part of its core."""
    if share == 1.0:
        yield
        return
    with quota("cpu") as group:
        (group / "cpu.cfs_period_us").write_text("4000")
        (group / "cpu.cfs_quota_us").write_text(str(int(4000 * share)))
        records = out / "records" / "rank-1.jsonl"
        deadline = time.monotonic() + _TIMEOUT
        while not records.exists():
            assert time.monotonic() < deadline, f"{records}: does not appear"
            time.sleep(0.02)
        pid = next(
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _has_open(entry / "fd", str(records))
        )
        group.joinpath("cgroup.procs").write_text(str(pid))
        yield


def _has_open(descriptors: Path, path: str) -> bool:
    try:
        return any(os.readlink(entry) == path for entry in descriptors.iterdir())
    except OSError:
        return False


def measure_fault(lab: Lab, name: str) -> dict[str, Any]:
    fault = FAULTS[name]
    slow = lab.diagnosis(fault.slow)
    finding = slow["findings"][0] if slow["findings"] else None
    named = finding is not None and finding["cause"] == fault.cause
    _say(f"{name}: {finding['cause'] if finding else 'nothing'}: {finding['limit'] if finding else ''}")
    if finding is None or not named:
        _say(json.dumps({**slow["times"], "others": [each["cause"] for each in slow["findings"]]}))
        return {"named": named, "promised": finding["gain"]["expected"] if finding else 0.0, "measured": None}
    after = lab.diagnosis(fault.mend(fault.slow, finding))
    seconds = "late_step_seconds" if fault.is_late else "step_seconds"
    measured = 1 - after[seconds] / slow[seconds]
    promised = finding["gain"]["expected"]
    _say(f"  {finding['change']}: promised {promised:.1%}, measured {measured:.1%}")
    return {"named": named, "promised": round(promised, 4), "measured": round(measured, 4)}


GOOD = {
    "wide": [str(JOB), "width=1024", "batch=128", "steps=40"],
    "gpt": [str(EXAMPLES / "gpt.py"), "steps=99"],
    "deep": [str(JOB), "width=768", "depth=16", "batch=96", "steps=40"],
}
"""Runs that plan themselves: nothing should be found about them."""
SUMMED = {
    **{f"gpt {plan}": [str(EXAMPLES / "gpt.py"), "steps=60", "--plan", plan] for plan in PLANS},
    **{name: [str(EXAMPLES / f"{name}.py")] for name in ("ctr", "llama", "resnet", "tabular")},
}
"""Runs whose causes must add up to their wall time."""


def false_alarms(lab: Lab) -> int:
    """Number of well-planned runs about which something is found."""
    alarms = 0
    for name, command in GOOD.items():
        out, _ = lab.timed_run(command)
        found = lab.why(out)["findings"]
        alarms += bool(found)
        _say(f"{name}: {', '.join(finding['limit'] for finding in found) or 'nothing to gain'}")
    return alarms


def sum_error(lab: Lab) -> float:
    """Largest difference between wall time and the sum of causes, as a fraction; also of the steps alone."""
    errors = []
    for name, command in SUMMED.items():
        out, seconds = lab.timed_run(command)
        causes = sum(wall_time(read_history(out)).values())
        errors.append(abs(1 - causes / seconds))
        _say(f"{name}: {seconds:.2f} s, causes {causes:.2f} s, error {errors[-1]:.1%}")
    return max(errors)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", default=",".join([*FAULTS, "sum", "cost", "alarms"]), help="what to measure")
    parser.add_argument("--blocks", type=int, default=160, help="blocks of eight steps to measure the cost with")
    chosen = parser.parse_args()
    only = chosen.only.split(",")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, object_store(Path(folder)) as store:
        lab = Lab(Path(folder), store)
        found["faults"] = {name: measure_fault(lab, name) for name in FAULTS if name in only}
        if "sum" in only:
            found["sum_error"] = round(sum_error(lab), 4)
        if "cost" in only:
            value, interval = recording(chosen.blocks)
            _say(f"recording: {with_interval(value, interval)} of a step without")
            found |= {"cost": round(value - 1, 4), "cost_interval": [round(end - 1, 4) for end in interval]}
        if "alarms" in only:
            found["false_alarms"] = false_alarms(lab)
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()

"""Does the planner choose well? Plans run for real on hosts made of network namespaces, beside what was predicted.

`python benchmarks/regret.py --json` (as root; 45 minutes on two cores). Each case is a model on a cluster:
the world probes itself, the model is timed, a plan is chosen; then 24 plans run in turn: what a user would start, the 8
predicted best, and a seeded sample of the rest. The chosen one, the best one and the default are measured once more,
alternately. `--cases 0,3` runs some of them, `--plans 12` fewer plans.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import namespaces

_ROOT = Path(__file__).parents[1]
_PORT = "29531"


@dataclass(frozen=True)
class Cluster:
    hosts: int = 1
    rate: str = ""
    quotas: tuple[float, ...] = ()

    def __str__(self) -> str:
        slowed = " one slowed to half" if len(set(self.quotas)) > 1 else ""
        return f"{self.hosts} hosts {self.rate or 'unlimited'}{slowed}" if self.hosts > 1 else "1 host"


_GPT = ("examples/gpt.py", ("width=192", "depth=4", "batch=16"))
_WIDE = ("examples/gpt.py", ("width=384", "depth=2", "context=32", "batch=16"))
_LLAMA = ("examples/llama.py", ("width=128", "depth=4", "batch=16"))
_RESNET = ("examples/resnet.py", ("width=16", "batch=32"))
_VISION = ("tests/jobs/vision.py", ("width=192", "depth=4"))
_CLICKS = ("examples/ctr.py", ("width=32", "batch=256"))
_HALVES = (0.5, 0.5, 0.5)
CASES = (
    (_GPT, Cluster()),
    (_WIDE, Cluster(2, "100mbit", (1.0, 1.0))),
    (_LLAMA, Cluster(2, "1gbit", (1.0, 1.0))),
    (_RESNET, Cluster(2, "", (1.0, 1.0))),
    (_VISION, Cluster(3, "1gbit", _HALVES)),
    (_CLICKS, Cluster(3, "100mbit", _HALVES)),
    (_GPT, Cluster(3, "", _HALVES)),
    (_GPT, Cluster(2, "", (1.0, 0.5))),
    (_RESNET, Cluster()),
    (_LLAMA, Cluster()),
)
_FREE = (0, 8)
"""Cases that are run with bf16 allowed too."""


def run_case(number: int, plans: int, precisions: Sequence[str], show: bool) -> dict[str, Any]:
    (script, arguments), cluster = CASES[number]
    made = namespaces.hosts(cluster.hosts, cluster.rate, cluster.quotas) if cluster.hosts > 1 else nullcontext(None)
    with tempfile.TemporaryDirectory() as folder, made as hosts:
        out = Path(folder) / "case.json"
        asked = {
            "script": str(_ROOT / script),
            "arguments": arguments,
            "count": plans,
            "precisions": precisions,
            "out": str(out),
        }
        command = [sys.executable, str(Path(__file__).with_name("regret_rank.py")), json.dumps(asked)]
        ranks = cluster.hosts if hosts else os.cpu_count() or 1
        running = []
        for rank in range(ranks):
            interface, address = (hosts[rank].interface, hosts[0].address) if hosts else ("lo", "127.0.0.1")
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": "0" if hosts else str(rank),
                "LOCAL_WORLD_SIZE": "1" if hosts else str(ranks),
                "MASTER_ADDR": address,
                "MASTER_PORT": _PORT,
                "GLOO_SOCKET_IFNAME": interface,
            }
            if show:
                environment["ONECURVE_SHOW"] = "1"
            full = hosts[rank].command(command) if hosts else command
            quiet = None if show or rank == 0 else subprocess.DEVNULL
            running.append(subprocess.Popen(full, env=os.environ | environment, stdout=quiet, stderr=quiet))
        for process in running:
            if process.wait() != 0:
                for other in running:
                    other.kill()
                raise SystemExit(f"case {number}: a rank failed")
        return {"script": script, "cluster": str(cluster), **json.loads(out.read_text())}


def summary(cases: Sequence[dict[str, Any]], free: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = [row for case in cases for row in case["plans"]]
    speedups = [case["default_over_chosen"] for case in cases]
    uneven = [case["uneven"] for case in cases if case["uneven"]]
    return {
        "cases": len(cases),
        "time_mape": _mape(rows, "predicted", "step"),
        "memory_mape": _mape(rows, "predicted_memory", "memory"),
        "regret_mean": 100 * statistics.fmean(case["regret"] for case in cases),
        "regret_max": 100 * max(case["regret"] for case in cases),
        "noise": 100 * statistics.fmean(case["noise"] for case in cases),
        "auto_speedup": statistics.geometric_mean([case["default_over_chosen"] for case in free] or speedups),
        "auto_speedup_same_precision": statistics.geometric_mean(speedups),
        "uneven_speedup": max(uneven, default=0.0),
    }


def _mape(rows: Sequence[dict[str, float]], predicted: str, measured: str) -> float:
    return 100 * statistics.fmean(abs(row[predicted] / row[measured] - 1) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))), help="which ones, by number")
    parser.add_argument("--plans", type=int, default=24, help="per case")
    parser.add_argument("--out", help="where every plan of every case goes, as JSON")
    chosen = parser.parse_args()
    cases, free = [], []
    for number in map(int, chosen.cases.split(",")):
        case = run_case(number, chosen.plans, ["fp32"], not chosen.json)
        cases.append(case)
        print(_line(case), file=sys.stderr, flush=True)
        if number in _FREE:
            free.append(run_case(number, min(12, chosen.plans), ["fp32", "bf16"], False))
            print(_line(free[-1]), file=sys.stderr, flush=True)
        if chosen.out:
            Path(chosen.out).write_text(json.dumps({"cases": cases, "free": free}))
    found = summary(cases, free)
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value:.4g}" for name, value in found.items()))


def _line(case: dict[str, Any]) -> str:
    time, memory = _mape(case["plans"], "predicted", "step"), _mape(case["plans"], "predicted_memory", "memory")
    return (
        f"{case['script']} on {case['cluster']}: chose {case['chosen']}, best was {case['best']}, "
        f"regret {case['regret']:.1%} (noise {case['noise']:.1%}), time within {time:.0f} %, memory {memory:.0f} %, "
        f"default {case['default_over_chosen']:.2f}×"
    )


if __name__ == "__main__":
    main()

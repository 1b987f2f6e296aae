"""Measure how good the planner's choice is: run plans on emulated hosts and compare them with their predictions.

`python benchmarks/regret.py --json` (needs root; takes 45 minutes on two cores)

Each case is a model on a cluster of network namespaces. The hosts are probed, the model is timed and a plan is chosen.
Then 24 plans run in turn: a user's default, the 8 plans with the best predictions, and a seeded sample of the rest. At
the end the chosen plan, the fastest plan and the default are measured once more, alternately. The script prints the
errors of predicted time and memory, the regret of the chosen plan and its speedup over the default, all over the cases.
`--cases 0,3` runs only some of the cases, `--plans 12` runs fewer plans.
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

from namespaces import emulated_hosts

_ROOT = Path(__file__).parents[1]
_PORT = "29531"


@dataclass(frozen=True)
class Cluster:
    """A cluster of emulated hosts, or this machine if `hosts` is 1."""

    hosts: int = 1
    rate: str = ""
    """Link rate in the notation of tc; empty for no limit."""
    quotas: tuple[float, ...] = ()
    """Fraction of a core for each host."""

    def __str__(self) -> str:
        slowed = " one slowed to half" if len(set(self.quotas)) > 1 else ""
        return f"{self.hosts} hosts {self.rate or 'unlimited'}{slowed}" if self.hosts > 1 else "1 host"


# A job: its script and arguments.
_GPT = ("examples/gpt.py", ("width=192", "depth=4", "batch=16"))
_WIDE_GPT = ("examples/gpt.py", ("width=384", "depth=2", "context=32", "batch=16"))
_LLAMA = ("examples/llama.py", ("width=128", "depth=4", "batch=16"))
_RESNET = ("examples/resnet.py", ("width=16", "batch=32"))
_VISION = ("tests/jobs/vision.py", ("width=192", "depth=4"))
_CLICKS = ("examples/ctr.py", ("width=32", "batch=256"))
_HALF_CORES = (0.5, 0.5, 0.5)
CASES = (
    (_GPT, Cluster()),
    (_WIDE_GPT, Cluster(2, "100mbit", (1.0, 1.0))),
    (_LLAMA, Cluster(2, "1gbit", (1.0, 1.0))),
    (_RESNET, Cluster(2, "", (1.0, 1.0))),
    (_VISION, Cluster(3, "1gbit", _HALF_CORES)),
    (_CLICKS, Cluster(3, "100mbit", _HALF_CORES)),
    (_GPT, Cluster(3, "", _HALF_CORES)),
    (_GPT, Cluster(2, "", (1.0, 0.5))),
    (_RESNET, Cluster()),
    (_LLAMA, Cluster()),
)
_BF16_CASES = (0, 8)
"""Cases that run a second time with bf16 allowed."""


def run_case(number: int, plans: int, precisions: Sequence[str], show: bool) -> dict[str, Any]:
    """Start regret_rank.py on every host and return its results. `hosts` is None if the ranks share this machine."""
    (script, arguments), cluster = CASES[number]
    emulated = emulated_hosts(cluster.hosts, cluster.rate, cluster.quotas) if cluster.hosts > 1 else nullcontext(None)
    with tempfile.TemporaryDirectory() as folder, emulated as hosts:
        out = Path(folder) / "case.json"
        settings = {
            "script": str(_ROOT / script),
            "arguments": arguments,
            "count": plans,
            "precisions": precisions,
            "out": str(out),
        }
        command = [sys.executable, str(Path(__file__).with_name("regret_rank.py")), json.dumps(settings)]
        ranks = cluster.hosts if hosts else os.cpu_count() or 1
        processes = []
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
            host_command = hosts[rank].command(command) if hosts else command
            output = None if show or rank == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(host_command, env=os.environ | environment, stdout=output, stderr=output))
        for process in processes:
            if process.wait() != 0:
                for other in processes:
                    other.kill()
                raise SystemExit(f"case {number}: a rank failed with exit code {process.returncode}")
        return {"script": script, "cluster": str(cluster), **json.loads(out.read_text())}


def summary(cases: Sequence[dict[str, Any]], bf16_cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the averages over all cases; errors and regret in percent."""
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
        "auto_speedup": statistics.geometric_mean([case["default_over_chosen"] for case in bf16_cases] or speedups),
        "auto_speedup_same_precision": statistics.geometric_mean(speedups),
        "uneven_speedup": max(uneven, default=0.0),
    }


def _mape(rows: Sequence[dict[str, float]], predicted: str, measured: str) -> float:
    return 100 * statistics.fmean(abs(row[predicted] / row[measured] - 1) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    every_case = ",".join(map(str, range(len(CASES))))
    parser.add_argument("--cases", default=every_case, help="numbers of the cases to run (default: all)")
    parser.add_argument("--plans", type=int, default=24, help="plans per case (default: 24)")
    parser.add_argument("--out", help="JSON file for the results of every plan")
    arguments = parser.parse_args()
    cases, bf16_cases = [], []
    for number in map(int, arguments.cases.split(",")):
        case = run_case(number, arguments.plans, ["fp32"], not arguments.json)
        cases.append(case)
        print(_line(case), file=sys.stderr, flush=True)
        if number in _BF16_CASES:
            bf16_cases.append(run_case(number, min(12, arguments.plans), ["fp32", "bf16"], False))
            print(_line(bf16_cases[-1]), file=sys.stderr, flush=True)
        if arguments.out:
            Path(arguments.out).write_text(json.dumps({"cases": cases, "free": bf16_cases}))
    result = summary(cases, bf16_cases)
    print(json.dumps(result) if arguments.json else "\n".join(f"{name}: {value:.4g}" for name, value in result.items()))


def _line(case: dict[str, Any]) -> str:
    time, memory = _mape(case["plans"], "predicted", "step"), _mape(case["plans"], "predicted_memory", "memory")
    return (
        f"{case['script']} on {case['cluster']}: chose {case['chosen']}, best was {case['best']}, "
        f"regret {case['regret']:.1%} (noise {case['noise']:.1%}), error of time {time:.0f} %, "
        f"of memory {memory:.0f} %, default / chosen {case['default_over_chosen']:.2f}"
    )


if __name__ == "__main__":
    main()

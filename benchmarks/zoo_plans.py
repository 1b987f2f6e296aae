"""Plan twelve well-known models for machines as they are used for them: `python benchmarks/zoo_plans.py [--only NAME]`.

The jobs are in tests/zoo/plan. Each is planned by `onecurve plan` in a process of its own, as a user would do it, in
bf16. The script prints the chosen plan, its predicted step time and memory, and the time that planning took: by the
clock, and by the processor, which does not depend on what else the machine does. Planning needs none of the machines.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from onecurve.describe.units import bytes_text, seconds_text

_JOBS = Path(__file__).parent.parent / "tests" / "zoo" / "plan"
CLUSTERS = {
    "resnet50": "8xA100",
    "gpt2_xl": "8xA100",
    "whisper": "2x8xA100",
    "sdxl": "4x8xA100",
    "vit_huge": "4x8xH100",
    "lora_8b": "8xH100",
    "mistral_7b": "4x8xH100",
    "llama_8b": "4x8xH100",
    "t5_11b": "4x8xA100",
    "qwen3_moe": "8x8xH100",
    "mixtral": "8x8xH100",
    "llama_70b": "16x8xH100",
}
"""Cluster of each job."""


def plan(name: str) -> dict[str, Any]:
    """Plan one job and return the figures of its plan; `error` if it cannot be planned."""
    begin, before = time.perf_counter(), _child_seconds()
    with tempfile.TemporaryDirectory() as folder:
        words = ["plan", str(_JOBS / f"{name}.py"), "--cluster", CLUSTERS[name], "--precision", "bf16", "--json"]
        command = [sys.executable, "-m", "onecurve", *words]
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    row: dict[str, Any] = {
        "name": name,
        "cluster": CLUSTERS[name],
        "seconds": time.perf_counter() - begin,
        "processor_seconds": _child_seconds() - before,
    }
    if not done.stdout:
        return row | {"error": next((line for line in done.stderr.splitlines() if "onecurve:" in line), "no output")}
    advice = json.loads(done.stdout)
    if advice["best"] is None:
        return row | {"error": "; ".join(advice["hints"])}
    best = advice["best"]
    return row | {
        "parameters": advice["parameters"],
        "plan": best["plan"],
        "choice": advice["choice"],
        "step_seconds": best["step_seconds"],
        "memory_bytes": best["memory_bytes"],
        "available_bytes": best["available_bytes"],
        "utilization": best["utilization"],
        "hints": advice["hints"],
    }


def _child_seconds() -> float:
    """Processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _line(row: dict[str, Any]) -> str:
    took = f"planned in {row['seconds']:.0f} s ({row['processor_seconds']:.0f} s of processor time)"
    head = f"{row['name']:<11} {row['cluster']:<10}"
    if "error" in row:
        return f"{head} {row['error']}; {took}"
    memory = f"{bytes_text(row['memory_bytes'])} of {bytes_text(row['available_bytes'])}"
    return f"{head} {row['plan']:<64} {seconds_text(row['step_seconds']):>8} per step, {memory} per rank; {took}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLUSTERS), metavar="NAME", help=f"one of {', '.join(CLUSTERS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    chosen = parser.parse_args()
    rows = []
    for name in [chosen.only] if chosen.only else CLUSTERS:
        rows.append(plan(name))
        print(_line(rows[-1]), file=sys.stderr if chosen.json else sys.stdout, flush=True)
    if chosen.json:
        print(json.dumps({"n": len(rows), "slowest": max(row["seconds"] for row in rows), "rows": rows}))


if __name__ == "__main__":
    main()

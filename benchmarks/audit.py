"""Plant bit flips in gradients, and count which ones an audit reports, its false alarms, and what it costs.

`python benchmarks/audit.py --json`

Every step is audited, on two ranks of this machine: a flip in one pass of one rank must be reported with that rank, and
a step without a flip must not be reported. For the cost, audited steps alternate with others in the same processes; the
script prints the extra time of one, over a hundred steps, with a bootstrapped 95 % confidence interval.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from overhead import ratio, show, torchrun

HERE = Path(__file__).parent
_TENSORS = {"weight": ("'blocks.1.linear.weight'",), "activation": ("'blocks.0.", "'first.")}
"""How the name of the parameter begins whose gradient differs, by the place of the flip: that of an activation changes
only gradients that are computed after it, and the lowest bits not all of them."""


def run(what: str, plan: str, *numbers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [*torchrun(), str(HERE / "audit_rank.py"), str(out), what, plan, *map(str, numbers)]
        subprocess.run(command, check=True, cwd=folder)
        return json.loads(out.read_text())


def found(result: dict[str, Any]) -> tuple[int, int]:
    """Number of flips that were reported with their rank and parameter, and of other reports."""
    planted, reported = result["planted"], result["reported"]
    right = 0
    for step, (rank, bit, place, only) in planted.items():
        *ranks, text = reported.pop(step, [""])
        is_right = ranks == [rank] and any(name in text for name in _TENSORS[place])
        right += is_right
        if not is_right:
            print(f"step {step}: bit {bit} of {place}, rank {rank}, pass {only}: {ranks} {text}", file=sys.stderr)
    return right, len(reported) + (not result["audit_is_on"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2020, help="audited steps")
    parser.add_argument("--flips", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of steps for the cost")
    parser.add_argument("--plans", default="replicate2 mb4,shard2 mb2×2")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    summary: dict[str, Any] = {}
    for plan in chosen.plans.split(","):
        right, false = found(run("flips", plan, chosen.steps, chosen.flips))
        show(
            f"{plan}: ",
            f"{right} of {chosen.flips} flips reported, {false} false alarms in {chosen.steps} audited steps",
        )
        summary[plan] = {"reported": right, "false_alarms": false}
    seconds = run("cost", "replicate2 mb8", 2 * chosen.pairs)
    value, interval = ratio(seconds["audited"], seconds["plain"])
    low, high = ((each - 1) / 100 for each in interval)
    summary["cost_at_100"] = (value - 1) / 100
    show("cost", f"{(value - 1) / 100:.2%} of the time at 1 in 100 [{low:.2%}, {high:.2%}]")
    if chosen.json:
        print(json.dumps({"version": 1, "steps": chosen.steps, "flips": chosen.flips, **summary}))


if __name__ == "__main__":
    main()

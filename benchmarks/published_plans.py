"""Compare published plans with the plans that the search chooses: `python benchmarks/published_plans.py`.

The script takes every published dense pre-training run on 64 or more devices (only the fastest run of each model,
cluster, batch size and sequence length) and searches the best plan for the same job on the same machines. Both plans
are predicted for onecurve's own engine; † marks a published plan that is predicted not to fit in its memory. The
predictor balances the pipeline stages. Recomputation, sharding and schedules are those that onecurve supports.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from published_runs import DATA, read
from transformer import Run, software

from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import BlockChain, CostTrace, JobCosts
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Profile
from onecurve.estimate.estimator import Estimator
from onecurve.search.branch_and_bound import BranchAndBound
from onecurve.search.space import Space

_LARGE = 64
_DEGREES = (2, 4, 8)


def largest(runs: Iterable[Run]) -> list[Run]:
    """Return the fastest run of each job on each cluster of 64 or more devices."""
    found: dict[tuple[str, ...], Run] = {}
    for run in runs:
        if not run.dense or run.number("gpus") < _LARGE or run.number("cp", 1) > 1:
            continue
        key = tuple(run.row[name] for name in ("model", "gpu", "gpus", "global_batch", "seq_len", "layers", "hidden"))
        if key not in found or run.measured < found[key].measured:
            found[key] = run
    return sorted(found.values(), key=lambda run: (run.number("gpus"), run.number("hidden")))


def costs(run: Run) -> JobCosts:
    """Return the costs of the job in the form that tracing a model gives."""
    _, made = software(run.source)

    def profile(samples: int, tensor: int) -> Profile:
        return Run({**run.row, "micro_batch": str(samples), "tp": str(tensor)}).profile(made)

    layers, heads = int(run.number("layers")), int(run.number("kv_heads") or run.number("heads"))
    halved = profile(2, 2)
    trace = CostTrace(profile(1, 1), profile(2, 1), {False: halved, True: halved} if made.sequence else {False: halved})
    degrees = tuple(each for each in _DEGREES if heads % each == 0)
    row = BlockChain(((1.0, 1.0),) * layers, kinds=(0,) * layers)
    precision = run.plan().precision
    return JobCosts({precision: trace}, int(run.number("global_batch")), 1, row, degrees)


def compare(run: Run) -> dict[str, Any] | None:
    hosts = run.hosts()
    estimator = Estimator(Cluster((hosts,)), costs(run))
    published = replace(run.plan(), reduce="step")
    if published.global_batch != estimator.costs.global_batch:
        return None
    found = BranchAndBound(Space(estimator)).run().chosen
    return {
        "model": run.row["model"],
        "devices": f"{int(run.number('gpus'))} {hosts.device.name}",
        "published": _short(published),
        "measured": run.measured,
        "predicted": sum(estimator.seconds(published).values()),
        "published_fits": sum(estimator.memory(published).values()) <= estimator.available(published),
        "chosen": _short(found.plan) if found else "nothing fits",
        "chosen_predicted": found.step if found else None,
        "memory": found.memory_bytes / 1e9 if found else None,
    }


def _short(plan: Plan) -> str:
    return str(replace(plan, sequence=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    rows = [row for run in largest(read(chosen.files)) if (row := compare(run)) is not None]
    if chosen.json:
        print(json.dumps({"n": len(rows), "rows": rows}))
        return
    print("| model | devices | published plan | predicted (measured) | chosen plan | predicted |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        mark = "" if row["published_fits"] else " †"
        better = f"{row['chosen_predicted']:.2f} s" if row["chosen_predicted"] else ""
        print(
            f"| {row['model']} | {row['devices']} | `{row['published']}`{mark} | {row['predicted']:.2f} s "
            f"({row['measured']:.2f} s) | `{row['chosen']}` | {better} |"
        )


if __name__ == "__main__":
    main()

"""Measure the prediction error on published training runs: `python benchmarks/published_runs.py CSV… --json`.

The CSV files have the columns of benchmarks/data/published_runs.csv. Without arguments the script reads that file and
benchmarks/data/published_runs_small.csv (small models).

It prints the error of the predicted step time for all dense rows, for the rows that the constants were fitted on (their
id hashes to an even number, see benchmarks/fit.py), for the other rows, and without the efficiency that transformer.py
states for each framework. It also prints the error of the predicted memory, and regret: among rows that differ only in
the plan, how much longer the plan predicted to be fastest took than the fastest measured plan. Last comes how often the
predicted order of two plans is right if their predictions hardly differ.
"""

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from zlib import crc32

from transformer import Run, software

from onecurve.describe.constants import Constants
from onecurve.describe.errors import OnecurveError
from onecurve.estimate.memory import memory_components
from onecurve.estimate.step import Predictor
from onecurve.search.simplicity import INDISTINGUISHABLE

DATA = [Path(__file__).parent / "data" / name for name in ("published_runs.csv", "published_runs_small.csv")]
_SAME_JOB = ("model", "layers", "hidden", "heads", "gpu", "gpus", "global_batch", "seq_len", "precision", "source")
"""Columns that are equal for rows that differ only in the plan."""
_DIFFERENCES = (INDISTINGUISHABLE, 0.1, 0.2, float("inf"))
"""Largest relative differences of the pairs that are counted together; within the first the simpler plan is chosen."""


def read(files: Iterable[Path]) -> list[Run]:
    """Return the pre-training runs with a measured step time."""
    rows = [row for file in files for row in csv.DictReader(file.open(encoding="utf-8"))]
    return [Run(row) for row in rows if row["task"] == "pretrain" and row["step_time_s"]]


def predicted(run: Run, constants: Constants | None = None, factors: bool = True) -> float:
    """Return the predicted seconds per step. `factors`: False ignores the efficiency stated for the framework."""
    _, framework = software(run.source)
    engine = framework.engine if factors else framework.engine_without_efficiency
    return sum(Predictor(run.hosts(), engine, constants).seconds(run.profile(framework), run.plan()).values())


def predicted_memory(run: Run) -> float:
    """Return the predicted memory of the fullest device in GB (1e9 bytes)."""
    _, framework = software(run.source)
    overhead = run.hosts().rank_overhead_bytes
    components = memory_components(run.profile(framework), run.plan(), run.engine(framework), overhead)
    return sum(components.values()) / 1e9


def memory(runs: Sequence[Run]) -> dict[str, float]:
    """Return the error of the predicted memory over the runs that state their peak memory."""
    measured = [run for run in runs if run.number("peak_mem_gb")]
    relative = [predicted_memory(run) / run.number("peak_mem_gb") - 1 for run in measured]
    return {"n": len(relative), "mape": 100 * statistics.fmean(map(abs, relative)) if relative else 0.0}


def is_fitting_row(run: Run) -> bool:
    """True if the constants were fitted on this row."""
    return crc32(run.row["id"].encode()) % 2 == 0


def errors(runs: Sequence[Run], predict: Callable[[Run], float]) -> dict[str, float]:
    """Return the number of runs and, in percent, their mean absolute error, mean error and 90th percentile."""
    relative = [predict(run) / run.measured - 1 for run in runs]
    if not relative:
        return {"n": 0, "mape": 0.0, "bias": 0.0, "nine_of_ten": 0.0}
    sizes = sorted(map(abs, relative))
    return {
        "n": len(relative),
        "mape": 100 * statistics.fmean(sizes),
        "bias": 100 * statistics.fmean(relative),
        "nine_of_ten": 100 * sizes[int(0.9 * len(sizes))],
    }


def regret(runs: Sequence[Run], predict: Callable[[Run], float]) -> dict[str, float]:
    """Return the mean and the maximum regret in percent over the groups of runs that differ only in the plan."""
    regrets = []
    for group in _same_jobs(runs):
        if len({str(run.plan()) for run in group}) > 1:
            best = min(run.measured for run in group)
            regrets.append(100 * (min(group, key=predict).measured / best - 1))
    mean = statistics.fmean(regrets) if regrets else 0.0
    return {"groups": len(regrets), "mean": mean, "max": max(regrets, default=0.0)}


def comparisons(runs: Sequence[Run], predict: Callable[[Run], float]) -> dict[str, dict[str, float]]:
    """Return how often the predicted order of two plans is right, by how much their predictions differ at most.

    `pairs` differ only in the plan. `right`: pairs, in percent, of which the plan predicted to be faster was faster.
    `slower`: how much longer the other plan took, in percent, on average.
    """
    extra: dict[float, list[float]] = {limit: [] for limit in _DIFFERENCES}
    for group in _same_jobs(runs):
        for pair in combinations(group, 2):
            first, second = sorted(pair, key=predict)
            if str(first.plan()) != str(second.plan()):
                difference = predict(second) / predict(first) - 1
                limit = next(limit for limit in _DIFFERENCES if difference <= limit)
                extra[limit].append(second.measured / first.measured - 1)
    return {
        str(limit): {
            "pairs": len(longer),
            "right": 100 * statistics.fmean(each > 0 for each in longer),
            "slower": 100 * statistics.fmean(longer),
        }
        for limit, longer in extra.items()
        if longer
    }


def _same_jobs(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the groups of runs that differ only in the plan."""
    groups = defaultdict(list)
    for run in runs:
        groups[tuple(run.row[name] for name in _SAME_JOB)].append(run)
    return list(groups.values())


def judge(runs: Sequence[Run], constants: Constants | None = None) -> dict[str, object]:
    """Return every error that the script prints; keys are those of the JSON output."""
    times = {}
    for run in runs:
        try:
            times[id(run)] = predicted(run, constants)
        except OnecurveError:  # the device is not in the catalogue
            continue
    skipped = len(runs) - len(times)
    runs = [run for run in runs if id(run) in times]
    dense = [run for run in runs if run.dense]

    def cached_time(run: Run) -> float:
        return times[id(run)]

    sources = sorted({run.source for run in dense})
    return {
        "overall": errors(dense, cached_time),
        "by_source": {name: errors([run for run in dense if run.source == name], cached_time) for name in sources},
        "chosen_on": errors([run for run in dense if is_fitting_row(run)], cached_time),
        "not_seen": errors([run for run in dense if not is_fitting_row(run)], cached_time),
        "regret": regret(dense, cached_time),
        "comparisons": comparisons(dense, cached_time),
        "without_framework_factors": errors(dense, lambda run: predicted(run, constants, factors=False)),
        "memory": memory(runs),
        "skipped": skipped,
        "moe_fp8": errors([run for run in runs if not run.dense], cached_time),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=DATA, help="CSV files (default: benchmarks/data)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result = judge(read(arguments.files or DATA))
    if arguments.json:
        print(json.dumps(result))
        return
    for name in ("overall", "chosen_on", "not_seen", "without_framework_factors", "moe_fp8"):
        print(f"{name:28} {_line(result[name])}")
    for name, source in sorted(result["by_source"].items(), key=lambda item: -item[1]["n"]):
        print(f"  {_line(source)}  {name[:90]}")
    if result["skipped"]:
        print(f"skipped: {result['skipped']} rows whose device is not in the catalogue")
    print(f"memory: n {result['memory']['n']}, error {result['memory']['mape']:.1f} %")
    print(f"regret over {result['regret']['groups']} groups: mean {result['regret']['mean']:.1f} %, ", end="")
    print(f"max {result['regret']['max']:.1f} %")
    for limit, pairs in result["comparisons"].items():
        print(f"plans whose predictions differ by up to {float(limit):.0%}: {pairs['pairs']} pairs, ", end="")
        print(f"order right in {pairs['right']:.0f} %, the slower took {pairs['slower']:.1f} % longer on average")


def _line(errors: dict[str, float]) -> str:
    return f"n {errors['n']:5}  error {errors['mape']:5.1f} %  bias {errors['bias']:+5.1f} %"


if __name__ == "__main__":
    main()

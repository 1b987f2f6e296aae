"""How well the predictor tells what others measured: `python benchmarks/published_runs.py CSV… --json`.

Files have the columns of benchmarks/data/published_runs.csv, which is read where none is given, with its companion of
small models. Constants were chosen (benchmarks/fit.py) on the rows whose id hashes to an even number; the error is
printed for those and for the others. One efficiency per framework is stated in transformer.py; the error without those
is printed beside. Regret: among rows that differ in the plan alone, the measured time of the one predicted fastest over
the best measured time.
"""

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from zlib import crc32

from transformer import Run, software

from onecurve.describe.constants import Constants
from onecurve.describe.errors import OnecurveError
from onecurve.predict.memory import memory_components
from onecurve.predict.step import Predictor

DATA = [Path(__file__).parent / "data" / name for name in ("published_runs.csv", "published_runs_small.csv")]
_ALIKE = ("model", "layers", "hidden", "heads", "gpu", "gpus", "global_batch", "seq_len", "precision", "source")


def read(files: Iterable[Path]) -> list[Run]:
    rows = [row for file in files for row in csv.DictReader(file.open(encoding="utf-8"))]
    return [Run(row) for row in rows if row["task"] == "pretrain" and row["step_time_s"]]


def predicted(run: Run, constants: Constants | None = None, factors: bool = True) -> float:
    _, made = software(run.source)
    engine = made.engine if factors else made.engine_alike
    return sum(Predictor(run.hosts(), engine, constants).seconds(run.profile(made), run.plan()).values())


def predicted_memory(run: Run) -> float:
    """GB, of the fullest device."""
    _, made = software(run.source)
    return (
        sum(
            memory_components(run.profile(made), run.plan(), run.engine(made), run.hosts().rank_overhead_bytes).values()
        )
        / 1e9
    )


def memory(runs: Sequence[Run]) -> dict[str, float]:
    known = [run for run in runs if run.number("peak_mem_gb")]
    found = [predicted_memory(run) / run.number("peak_mem_gb") - 1 for run in known]
    return {"n": len(found), "mape": 100 * statistics.fmean(map(abs, found)) if found else 0.0}


def chosen_on(run: Run) -> bool:
    """Whether constants were chosen on this row."""
    return crc32(run.row["id"].encode()) % 2 == 0


def errors(runs: Sequence[Run], predict: Callable[[Run], float]) -> dict[str, float]:
    found = [predict(run) / run.measured - 1 for run in runs]
    if not found:
        return {"n": 0, "mape": 0.0, "bias": 0.0, "nine_of_ten": 0.0}
    sizes = sorted(map(abs, found))
    return {
        "n": len(found),
        "mape": 100 * statistics.fmean(sizes),
        "bias": 100 * statistics.fmean(found),
        "nine_of_ten": 100 * sizes[int(0.9 * len(sizes))],
    }


def regret(runs: Sequence[Run], predict: Callable[[Run], float]) -> dict[str, float]:
    groups = defaultdict(list)
    for run in runs:
        groups[tuple(run.row[name] for name in _ALIKE)].append(run)
    found = []
    for group in groups.values():
        if len({str(run.plan()) for run in group}) > 1:
            best = min(run.measured for run in group)
            found.append(100 * (min(group, key=predict).measured / best - 1))
    return {"groups": len(found), "mean": statistics.fmean(found) if found else 0.0, "max": max(found, default=0.0)}


def judge(runs: Sequence[Run], constants: Constants | None = None) -> dict[str, object]:
    times = {}
    for run in runs:
        try:
            times[id(run)] = predicted(run, constants)
        except OnecurveError:  # of a device that the catalogue does not have
            continue
    skipped = len(runs) - len(times)
    runs = [run for run in runs if id(run) in times]
    dense = [run for run in runs if run.dense]

    def known(run: Run) -> float:
        return times[id(run)]

    sources = sorted({run.source for run in dense})
    return {
        "overall": errors(dense, known),
        "by_source": {name: errors([run for run in dense if run.source == name], known) for name in sources},
        "chosen_on": errors([run for run in dense if chosen_on(run)], known),
        "not_seen": errors([run for run in dense if not chosen_on(run)], known),
        "regret": regret(dense, known),
        "without_framework_factors": errors(dense, lambda run: predicted(run, constants, factors=False)),
        "memory": memory(runs),
        "skipped": skipped,
        "moe_fp8": errors([run for run in runs if not run.dense], known),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = judge(read(chosen.files or DATA))
    if chosen.json:
        print(json.dumps(found))
        return
    for name in ("overall", "chosen_on", "not_seen", "without_framework_factors", "moe_fp8"):
        print(f"{name:28} {_line(found[name])}")
    for name, each in sorted(found["by_source"].items(), key=lambda item: -item[1]["n"]):
        print(f"  {_line(each)}  {name[:90]}")
    if found["skipped"]:
        print(f"skipped: {found['skipped']} rows of devices that are not in the catalogue")
    print(f"memory: n {found['memory']['n']}, error {found['memory']['mape']:.1f} %")
    print(f"regret over {found['regret']['groups']} groups: mean {found['regret']['mean']:.1f} %, ", end="")
    print(f"max {found['regret']['max']:.1f} %")


def _line(each: dict[str, float]) -> str:
    return f"n {each['n']:5}  error {each['mape']:5.1f} %  bias {each['bias']:+5.1f} %"


if __name__ == "__main__":
    main()

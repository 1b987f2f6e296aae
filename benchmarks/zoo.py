"""Checks models as people have them (tests/zoo) under one plan of every kind, and counts how each cell ended.

    python benchmarks/zoo.py [--only NAME …] [--json] [--verbose]

A cell is one model under one plan. `holds`: it computes the same as one device. `refused`: onecurve does not run this
model under this plan and says why. `differs`, `crashes` and `hangs` must be 0. Needs transformers, torchvision, timm,
diffusers, peft and torch_geometric.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

HERE = Path(__file__).parent
ZOO_FOLDER = HERE.parent / "tests" / "zoo"
sys.path.insert(0, str(ZOO_FOLDER))

from catalogue import ZOO, ZooModel  # noqa: E402

from onecurve.describe.convert import to_json  # noqa: E402
from onecurve.describe.errors import OnecurveError, SignalName  # noqa: E402
from onecurve.describe.plan import Plan  # noqa: E402
from onecurve.describe.requests import CheckRequest  # noqa: E402
from onecurve.describe.verdict import Verdict  # noqa: E402
from onecurve.launch.failure import RankFailedError  # noqa: E402
from onecurve.launch.local import LocalRanks  # noqa: E402
from onecurve.report.check_table import summary_of  # noqa: E402
from onecurve.verbs.check import check_in_ranks  # noqa: E402

PLANS = {
    "one device": "mb4×2 fp64",
    "replicate": "replicate2 mb4 fp64",
    "shard": "shard2 mb2×2 fp64",
    "tensor": "tensor2 mb8 fp64",
    "sequence": "tensor2 mb8 fp64 sequence",
    "pipeline": "pipeline2 mb4×2 fp64",
    "zero-bubble": "pipeline2 mb4×2 fp64 schedule=zero-bubble",
}
"""One plan of every kind, for two ranks and a global batch of 8."""


@dataclass(frozen=True)
class Cell:
    """How one model ended under one plan."""

    model: str
    kind: str
    outcome: str
    """`holds`, `refused`, `differs`, `crashes` or `hangs`."""
    detail: str


def check_model(launcher: LocalRanks, model: ZooModel, kinds: list[str]) -> list[Cell]:
    """Check one model under one plan of each kind."""
    plans = tuple(Plan.parse(PLANS[kind]) for kind in kinds)
    with tempfile.TemporaryDirectory(prefix="onecurve-zoo-") as folder:
        request = CheckRequest(
            script=str(ZOO_FOLDER / model.script),
            arguments=model.arguments,
            plans=plans,
            ranks=2,
            steps=2,
            precision="fp64",
            quiet=True,
            folder=folder,
        )

        def start() -> SignalName | None:
            return launcher.run("check", to_json(request), request.ranks).signal

        try:
            verdicts = {verdict.plan: verdict for verdict in check_in_ranks(request, start).verdicts}
        except RankFailedError as error:  # no plan was reached
            outcome = "refused" if error.is_input_error else "failed"
            verdicts = {str(plan): Verdict(plan=str(plan), outcome=outcome, reason=str(error)) for plan in plans}
        except OnecurveError as error:
            verdicts = {str(plan): Verdict(plan=str(plan), outcome="failed", reason=str(error)) for plan in plans}
    return [_cell(model, kind, verdicts[str(plan)]) for kind, plan in zip(kinds, plans, strict=True)]


def _cell(model: ZooModel, kind: str, verdict: Verdict) -> Cell:
    if verdict.outcome == "failed":
        outcome = "hangs" if "no progress" in verdict.reason else "crashes"
        return Cell(model.name, kind, outcome, verdict.reason)
    detail = verdict.reason or f"{verdict.size:.1e} at {verdict.tensor}"
    return Cell(model.name, kind, verdict.outcome, detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models to check (default: all)")
    parser.add_argument("--kinds", nargs="+", choices=PLANS, default=list(PLANS), help="kinds of plans")
    parser.add_argument("--json", action="store_true", help="print the counts and every cell as JSON")
    parser.add_argument("--verbose", action="store_true", help="print whole reasons, with tracebacks")
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with LocalRanks("zoo_program", "check", "{}", print_to_stderr) as launcher:
        check_models(launcher, chosen)


def print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_models(launcher: LocalRanks, chosen: argparse.Namespace) -> None:
    models = [model for model in ZOO if not chosen.only or model.name in chosen.only]
    cells: list[Cell] = []
    for number, model in enumerate(models, start=1):
        began = time.monotonic()
        of_model = check_model(launcher, model, chosen.kinds)
        cells += of_model
        counts = Counter(cell.outcome for cell in of_model)
        text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        print(f"[{number}/{len(models)}] {model.name}: {text} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
        for cell in of_model:
            if cell.outcome != "holds":
                detail = cell.detail if chosen.verbose else summary_of(cell.detail)
                print(f"    {cell.kind}: {cell.outcome}: {detail}", file=sys.stderr, flush=True)
    counts = Counter(cell.outcome for cell in cells)
    result = {
        "models": len(models),
        "cells": len(cells),
        **{outcome: counts[outcome] for outcome in ("holds", "refused", "differs", "crashes", "hangs")},
    }
    if chosen.json:
        details = [{**vars(cell), "detail": summary_of(cell.detail)} for cell in cells]
        print(json.dumps({"version": 1, **result, "details": details}))
    else:
        print(", ".join(f"{name} {value}" for name, value in result.items()))
        print(f"{100 * counts['holds'] / max(len(cells), 1):.0f} % of the cells hold")


if __name__ == "__main__":
    main()

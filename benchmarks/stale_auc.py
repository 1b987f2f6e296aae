"""What staleness costs: `python benchmarks/stale_auc.py --json` compares the AUC of runs with and without it.

Clicks with a Zipf law. For each seed one run is synchronous, and one has rows that lack the updates of four steps after
a warm-up. Both see the same samples; every sample once. `rows`: the rows that exist at the end.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.stored_rows import read_rows
from onecurve.describe.slots import SLOTS

HERE = Path(__file__).parent


def train(folder: Path, *arguments: str) -> tuple[float, int]:
    """Return the AUC at the end, and the number of rows."""
    words = ["-m", "onecurve", "run", str(HERE / "zipf_job.py"), *arguments, "--plan", "mb1024", "--no-check"]
    ended = subprocess.run([sys.executable, *words, "--out", str(folder)], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    records = [json.loads(line) for line in (folder / "records" / "rank-0.jsonl").read_text().splitlines()]
    store = LocalStore(folder / "checkpoints")
    newest = Checkpoint(store, store.names()[-1])
    rows = sum(ids.numel() for _, ids, _, _ in read_rows(newest, ["user", "item"], range(SLOTS)))
    return next(record["metrics"]["auc"] for record in reversed(records) if record["kind"] == "evaluation"), rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {"synchronous": [], "stale": []}
    fewest = sys.maxsize
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(chosen.seeds):
            for name, staleness in (("synchronous", 0), ("stale", chosen.staleness)):
                arguments = [f"seed={seed}", f"steps={chosen.steps}", f"staleness={staleness}"]
                arguments += [f"warmup={chosen.warmup}"] if staleness else []
                auc, rows = train(Path(folder, f"{name}-{seed}"), *arguments)
                found[name].append(auc)
                fewest = min(fewest, rows)
                print(seed, name, f"auc {auc:.4f}, {rows:,} rows", file=sys.stderr, flush=True)
    means = {f"{name}_auc": round(statistics.mean(values), 4) for name, values in found.items()}
    result = {**means, "difference": round(means["stale_auc"] - means["synchronous_auc"], 4), "rows": fewest}
    print(json.dumps(result) if chosen.json else result)


if __name__ == "__main__":
    main()

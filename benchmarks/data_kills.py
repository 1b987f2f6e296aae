"""Kill a run again and again, continue it on other numbers of ranks, and count its samples.

`python benchmarks/data_kills.py --kills 20 --json`

For each kind of data, a run of tests/jobs/ledger.py is started by torchrun on 1 to 4 ranks. Rank 0 kills itself some
steps later, and the next start continues from the newest checkpoint on another number of ranks. True in the output if
the steps that count have seen each sample of the epoch exactly once; for a mix, which has no epoch of its own, and a
stream, if each step has the samples of a run that was not killed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

_TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(_TESTS))
from sample_files import write_indexed  # noqa: E402

_LEDGER = _TESTS / "jobs" / "ledger.py"
_BATCH = 12
_SIZES = (300, 100, 7, 393, 400)
"""Samples of the files; in all, one epoch of whole steps."""
_STEPS = sum(_SIZES) // _BATCH
_KINDS = ("jsonl", "parquet", "tar", "tfrecord", "tokens", "folder", "mix", "stream")


def start(folder: Path, number: int, ranks: int, kind: str, die: int) -> int:
    """Run until step `die`, or to the end if that is 0; return the exit status. `number`: of the start."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "LEDGER_STEPS": str(_STEPS), "LEDGER_START": str(number)}
    command = [*launch, str(_LEDGER), "out", str(die), kind, "data"]
    ended = subprocess.run(
        command, cwd=folder, env={**os.environ, **own}, capture_output=True, timeout=300, check=False
    )
    if not die and ended.returncode:
        print(ended.stderr.decode()[-3000:], file=sys.stderr)
    return ended.returncode


def samples_by_step(folder: Path) -> dict[int, list[int]]:
    """The samples of each step, of the last start that has done it completely."""
    by_start: dict[int, dict[int, list[int]]] = {}
    for file in (folder / "out").glob("ledger-*"):
        for line in map(json.loads, file.read_text().splitlines()):
            by_start.setdefault(line["step"], {}).setdefault(line["start"], []).extend(line["ids"])
    newest = {}
    for step, starts in by_start.items():
        complete = {number: ids for number, ids in starts.items() if len(ids) == _BATCH}
        assert len({tuple(sorted(ids)) for ids in complete.values()}) == 1, (
            f"step {step} had other samples when repeated"
        )
        newest[step] = complete[max(complete)]
    return newest


def survives(kind: str, kills: int, seed: int) -> dict[str, object]:
    """Kill and continue a run; return whether all is right, and how often it was killed."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_indexed(folder / "data", _SIZES)
        die, ranks = 0, 0
        for number in range(kills):
            die += _STEPS // (kills + 1) + draw.randint(-1, 1)
            ranks = draw.choice([each for each in (1, 2, 3, 4) if each != ranks])
            assert start(folder, number, ranks, kind, die) != 0
        assert start(folder, kills, draw.choice((1, 2, 3, 4)), kind, 0) == 0
        found = samples_by_step(folder)
        right = sorted(found) == list(range(1, _STEPS + 1))
        if kind in ("mix", "stream"):
            (folder / "out").rename(folder / "killed")
            assert start(folder, 0, 1, kind, 0) == 0
            expected = samples_by_step(folder)
            right = right and all(sorted(found[step]) == sorted(expected[step]) for step in expected)
        else:
            right = right and Counter(each for ids in found.values() for each in ids) == Counter(range(sum(_SIZES)))
    return {"right": right, "kills": kills}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=_KINDS, choices=_KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = {}
    for kind in chosen.kinds:
        found[kind] = survives(kind, chosen.kills, chosen.seed)
        print(kind, found[kind], file=sys.stderr, flush=True)
    print(json.dumps(found) if chosen.json else found)


if __name__ == "__main__":
    main()

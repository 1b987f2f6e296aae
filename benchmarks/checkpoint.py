"""Measures what saving and loading a checkpoint costs, compared with a plain copy and with PyTorch's DCP.

    python benchmarks/checkpoint.py [--pairs N] [--json]

Two ranks share 256 MB of parameters and Adam state. The same processes take turns with an asynchronous save by onecurve
and one by DCP (the time that the training step waits), a plain copy of the same tensors, a verified load by onecurve
and a load by DCP. Ratios are medians over consecutive measurements. Afterwards the commit of the first rank is timed
among the simulated files of 1, 32 and 1,024 ranks.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from overhead import HERE, ratio, torchrun

from onecurve.checkpoint.hashed_json import dump_hashed
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import Root, SavePoint, data_file, manifest_file
from onecurve.checkpoint.store import name_of
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan

_WORLD_SIZES = (1, 32, 1024)


def measure(pairs: int) -> dict[str, Any]:
    """Run `pairs` turns of checkpoint_rank.py on two ranks; return its times in seconds and its bytes per rank."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        subprocess.run([*torchrun(), str(HERE / "checkpoint_rank.py"), str(out), str(pairs)], check=True)
        return json.loads(out.read_text())


def first_rank_seconds(ranks: int, saves: int = 30) -> float:
    """Median seconds of a commit, the only work that the first rank does alone, among the files of `ranks` ranks."""
    token = "0123456789abcdef"
    name, root = name_of(1, token), dump_hashed(Root(token, ranks, SavePoint(1), Plan(Mesh(shard=ranks)), {}))
    seconds = []
    for _ in range(saves):
        folder = Path(tempfile.mkdtemp())
        store = LocalStore(folder)
        store.begin(name)
        for rank in range(ranks):
            for file in (data_file(rank), manifest_file(rank)):
                (folder / f".{name}.part" / file).write_bytes(b"simulated")
        begin = time.perf_counter()
        store.commit(name, root)
        seconds.append(time.perf_counter() - begin)
        shutil.rmtree(folder)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="measurements of each kind", metavar="N")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    measured = measure(arguments.pairs)
    # The first measurement also allocates memory and creates folders.
    seconds = {name: values[1:] for name, values in measured["seconds"].items()}
    ratios = {
        "stall_over_copy": ratio(seconds["stall"], seconds["copy"]),
        "dcp_async_stall_over_copy": ratio(seconds["dcp_stall"], seconds["copy"]),
        "load_over_dcp": ratio(seconds["load"], seconds["dcp_load"]),
    }
    commits = {str(ranks): first_rank_seconds(ranks) for ranks in _WORLD_SIZES}
    if arguments.json:
        print(json.dumps({name: value for name, (value, _) in ratios.items()} | {"first_rank_seconds": commits}))
        return
    print(f"{measured['bytes_per_rank'] / 1e6:.0f} MB on each rank")
    for name, (value, (low, high)) in ratios.items():
        print(f"{name:28} {value:.3f}  ({low:.3f} … {high:.3f})")
    for name, values in measured["seconds"].items():
        print(f"{name:28} median {statistics.median(values) * 1000:.1f} ms, first {values[0] * 1000:.1f} ms")
    for ranks, commit in commits.items():
        print(f"first rank, {ranks:>5} ranks: {commit * 1000:.2f} ms (other ranks' files simulated)")


if __name__ == "__main__":
    main()

"""What a checkpoint costs: `python benchmarks/checkpoint.py --json`.

Two ranks with 256 MB of parameters and Adam state between them. In turn, in the same processes: an asynchronous
save by onecurve and by DCP (how long the step waits), a plain copy of the same tensors, a verified load and DCP's load.
Ratios are medians over neighbours. Then what the first rank does in a save of 1, 32 and 1,024 ranks, whose files are
simulated.
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
from onecurve.checkpoint.manifest import Root, Standing, data_file, manifest_file
from onecurve.checkpoint.store import name_of
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan

_WORLDS = (1, 32, 1024)


def measure(pairs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        subprocess.run([*torchrun(), str(HERE / "checkpoint_rank.py"), str(out), str(pairs)], check=True)
        return json.loads(out.read_text())


def first_rank_seconds(ranks: int, saves: int = 30) -> float:
    """The commit, which the first rank alone does, among the files of so many others."""
    token = "0123456789abcdef"
    name, root = name_of(1, token), dump_hashed(Root(token, ranks, Standing(1, 1), Plan(Mesh(shard=ranks)), {}))
    found = []
    for _ in range(saves):
        folder = Path(tempfile.mkdtemp())
        store = LocalStore(folder)
        store.begin(name)
        for rank in range(ranks):
            for file in (data_file(rank), manifest_file(rank)):
                (folder / f".{name}.part" / file).write_bytes(b"simulated")
        begin = time.perf_counter()
        store.commit(name, root)
        found.append(time.perf_counter() - begin)
        shutil.rmtree(folder)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    measured = measure(chosen.pairs)
    seconds = {name: values[1:] for name, values in measured["seconds"].items()}  # the first makes memory and folders
    ratios = {
        "stall_over_copy": ratio(seconds["stall"], seconds["copy"]),
        "dcp_async_stall_over_copy": ratio(seconds["dcp_stall"], seconds["copy"]),
        "load_over_dcp": ratio(seconds["load"], seconds["dcp_load"]),
    }
    commits = {str(ranks): first_rank_seconds(ranks) for ranks in _WORLDS}
    if chosen.json:
        print(json.dumps({name: value for name, (value, _) in ratios.items()} | {"first_rank_seconds": commits}))
        return
    print(f"{measured['bytes_per_rank'] / 1e6:.0f} MB on each rank")
    for name, (value, (low, high)) in ratios.items():
        print(f"{name:28} {value:.3f}  ({low:.3f} … {high:.3f})")
    for name, values in measured["seconds"].items():
        print(f"{name:28} median {statistics.median(values) * 1000:.1f} ms, first {values[0] * 1000:.1f} ms")
    for ranks, taken in commits.items():
        print(f"first rank, {ranks:>5} ranks: {taken * 1000:.2f} ms (other ranks' files simulated)")


if __name__ == "__main__":
    main()

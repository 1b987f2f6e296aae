"""How fast sources read, next to the bare reader of each format, and what an index of 10^9 samples takes.

`python benchmarks/data.py --json`

- `over_bare`: samples per second of a source, in the shuffled order of a job, over those of the bare reader, which goes
  through the same files from begin to end: the median over rounds that alternate, in one process. Bare readers: json
  and pyarrow line by line and row group by row group, tarfile, the package tfrecord (if it is not installed: the
  framing by struct, with the same decoder), numpy's memmap, open().read().
- `memory_growth`: resident memory of a process that reads 1,000 samples with an index of 10^9 samples over one with
  10^4. `resume_seconds`: what it takes to open the source and read the sample at position 10^9.
- `peers`: our samples per second over those of other libraries, as far as they are installed: data_peers.py.
- `remote_step_ratio`, `bytes_read_ratio`, `store_faults`: with an object store, needs root: remote_data.py.
"""

import argparse
import io
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

import onecurve as oc
from onecurve.data.source import Source
from onecurve.formats.index_file import DataPiece, write_index
from onecurve.formats.tf_example import decode_example

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import remote_data
from data_peers import over_peers

from sample_files import example, record, tar_of

_FILES, _SAMPLES = 8, 1_000
"""Files of each format, and samples of a file."""
_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--resident", metavar="INDEX", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.resident:
        print(_resident_after_reading(Path(chosen.resident)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found: dict[str, Any] = {"over_bare": {}}
        for name, (write, bare, source) in FORMATS.items():
            write(folder / name)
            oc.index(str(folder / name), processes=1)
            found["over_bare"][name] = round(_ratio(folder / name, bare, source, chosen.rounds), 3)
            print(name, found["over_bare"][name], file=sys.stderr, flush=True)
        _, _, tar = FORMATS["tar"]
        found["peers"] = over_peers(folder / "tar", tar(str(folder / "tar")), folder, chosen.rounds)
        print(found["peers"], file=sys.stderr, flush=True)
        found |= _growth(folder)
    if os.geteuid() == 0:
        found |= remote_data.measured()
    print(json.dumps(found) if chosen.json else found)


def _ratio(folder: Path, bare: Callable[[Path], int], source: Callable[[str], Source], rounds: int) -> float:
    """Samples per second of the source over those of the bare reader."""
    opened = source(str(folder))
    ratios = []
    for number in range(rounds + 1):
        order = opened.order(number)
        begin = time.perf_counter()
        count = bare(folder)
        middle = time.perf_counter()
        for sample in order.samples(0, len(opened)):
            opened.read(sample.file, sample.offset)
        end = time.perf_counter()
        assert count == len(opened), (count, len(opened))
        ratios.append((middle - begin) / (end - middle))
    return statistics.median(ratios[1:])  # the first one fills the page cache


def _growth(folder: Path) -> dict[str, float]:
    np.save(folder / "tokens" / "0.npy", np.zeros(_FILES * _SAMPLES * _TOKENS + 1, np.uint16))
    resident, seconds = {}, 0.0
    for samples in (10**4, 10**9):
        index = folder / f"{samples}.index"
        count = 10
        pieces = (
            DataPiece(f"{number}.npy", 1, 0, 0, samples // count * _TOKENS + 1, details=[128, 1])
            for number in range(count)
        )
        write_index(index, "tokens", {}, pieces)
        words = [sys.executable, __file__, "--resident", str(index)]
        bytes_used, seconds = map(
            float, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        )
        resident[samples] = bytes_used
    return {"memory_growth": round(resident[10**9] / resident[10**4], 3), "resume_seconds": round(seconds, 3)}


def _resident_after_reading(index: Path) -> str:
    """Bytes that are resident after the order has given 1,000 samples, and the seconds to continue at 10^9."""
    begin = time.perf_counter()
    source = oc.data.tokens(str(index.parent / "tokens"), length=_TOKENS, index=str(index))
    order = source.order(0)
    (sample,) = order.samples(10**9, 10**9 + 1)
    seconds = time.perf_counter() - begin
    for number in range(1000):
        list(order.samples(number * 512, (number + 1) * 512))
    assert sample.offset >= 0
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return f"{resident} {seconds}"


def _numbers() -> Iterator[tuple[int, range]]:
    for file in range(_FILES):
        yield file, range(file * _SAMPLES, (file + 1) * _SAMPLES)


def _text(number: int) -> str:
    draw = random.Random(number)
    return "".join(draw.choices("abcdefghij klmnopqrst", k=draw.randint(200, 2000)))


def _write_jsonl(folder: Path) -> None:
    folder.mkdir()
    for file, numbers in _numbers():
        lines = (json.dumps({"id": number, "text": _text(number)}) + "\n" for number in numbers)
        (folder / f"{file}.jsonl").write_text("".join(lines))


def _bare_jsonl(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as file:
            for line in file:
                json.loads(line)
                count += 1
    return count


def _write_parquet(folder: Path) -> None:
    folder.mkdir()
    for file, numbers in _numbers():
        table = pyarrow.table({"id": list(numbers), "text": [_text(number) for number in numbers]})
        pyarrow.parquet.write_table(table, folder / f"{file}.parquet", row_group_size=500)


def _bare_parquet(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*.parquet")):
        file = pyarrow.parquet.ParquetFile(path)
        for group in range(file.num_row_groups):
            for _ in file.read_row_group(group, use_threads=False).to_pylist():
                count += 1
    return count


def _write_tar(folder: Path) -> None:
    folder.mkdir()
    for file, numbers in _numbers():
        members = []
        for number in numbers:
            members += [(f"{number:07}.jpg", random.Random(number).randbytes(10_000)), (f"{number:07}.cls", b"7")]
        (folder / f"{file}.tar").write_bytes(tar_of(members))


def _bare_tar(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as members:
            for member in members:
                file = members.extractfile(member)
                assert file is not None
                file.read()
                count += member.name.endswith(".cls")
    return count


def _write_tfrecord(folder: Path) -> None:
    folder.mkdir()
    for file, numbers in _numbers():
        parts = (record(example({"id": [number], "x": list(range(40))})) for number in numbers)
        (folder / f"{file}.tfrecord").write_bytes(b"".join(parts))


def _bare_tfrecord(folder: Path) -> int:
    count = 0
    if find_spec("tfrecord") is not None:
        from tfrecord.reader import tfrecord_loader

        return sum(1 for path in sorted(folder.glob("*.tfrecord")) for _ in tfrecord_loader(str(path), None))
    for path in sorted(folder.glob("*.tfrecord")):
        file = io.BytesIO(path.read_bytes())
        while head := file.read(12):
            decode_example(file.read(struct.unpack("<QI", head)[0]))
            file.read(4)
            count += 1
    return count


def _write_tokens(folder: Path) -> None:
    folder.mkdir()
    for file, _ in _numbers():
        np.save(folder / f"{file}.npy", np.arange(_SAMPLES * _TOKENS + 1).astype(np.uint16))


def _bare_tokens(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*.npy")):
        tokens = np.load(path, mmap_mode="r")
        for begin in range(0, len(tokens) - _TOKENS, _TOKENS):
            both = torch.from_numpy(tokens[begin : begin + _TOKENS + 1].astype(np.int64))
            _ = both[:-1], both[1:]
            count += 1
    return count


def _write_folder(folder: Path) -> None:
    for file, numbers in _numbers():
        (folder / str(file)).mkdir(parents=True)
        for number in numbers:
            content = b"\x89PNG\r\n" + random.Random(number).randbytes(10_000)
            (folder / str(file) / f"{number:07}.png").write_bytes(content)


def _bare_folder(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*/*.png")):
        with path.open("rb") as file:
            file.read()
        count += 1
    return count


FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[Path], int], Callable[[str], Source]]] = {
    "jsonl": (_write_jsonl, _bare_jsonl, oc.data.jsonl),
    "parquet": (_write_parquet, _bare_parquet, oc.data.parquet),
    "tar": (_write_tar, _bare_tar, oc.data.tar),
    "tfrecord": (_write_tfrecord, _bare_tfrecord, oc.data.tfrecord),
    "tokens": (_write_tokens, _bare_tokens, lambda path: oc.data.tokens(path, length=_TOKENS)),
    "folder": (_write_folder, _bare_folder, oc.data.folder),
}

if __name__ == "__main__":
    main()

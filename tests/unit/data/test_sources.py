"""Sources: all samples of all formats, in plain PyTorch and in a job's order; what is wrong with a file is said."""

import io
import multiprocessing
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import onecurve as oc
from onecurve.data.loader import Reader
from onecurve.data.order import WHOLE, Sample
from onecurve.data.source import Source
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError
from onecurve.formats.index_file import DamagedIndexError
from onecurve.formats.indexing import DataLocation, build_index
from onecurve.formats.tf_example import decode_example
from sample_files import SIZES, WRITERS, example, record, tar_of

SOURCES: dict[str, Callable[[str], Source]] = {
    "jsonl": lambda path: oc.data.jsonl(path).map(lambda line: line["id"]),
    "gzip": lambda path: oc.data.jsonl(path).map(lambda line: line["id"]),
    "zstandard": lambda path: oc.data.jsonl(path).map(lambda line: line["id"]),
    "tar": lambda path: oc.data.tar(path).map(lambda sample: int(sample["id"])),
    "parquet": lambda path: oc.data.parquet(path, columns=["id"]).map(lambda row: row["id"]),
    "tfrecord": lambda path: oc.data.tfrecord(path).map(lambda each: int(each["id"][0])),
    "tokens": lambda path: oc.data.tokens(path, length=1).map(lambda pair: int(pair[0])),
    "folder": lambda path: oc.data.folder(path).map(lambda pair: int(pair[0][6:])),
}
ALL = list(range(sum(SIZES)))


def made(kind: str, folder: Path) -> str:
    WRITERS[kind](folder)
    oc.index(str(folder), processes=1)
    return str(folder)


@pytest.mark.parametrize("kind", SOURCES)
def test_all_samples_are_read_once(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](made(kind, tmp_path / "data"))
    source.verify()
    assert [source[index] for index in range(len(source))] == ALL
    with pytest.raises(IndexError):
        source[len(source)]
    order = source.order(seed=1)
    epoch = [source.read(sample.file, sample.offset) for sample in order.samples(0, len(source))]
    assert sorted(epoch) == ALL
    assert epoch != ALL


def test_sources_work_in_plain_pytorch(tmp_path: Path) -> None:
    source = oc.data.tokens(made("tokens", tmp_path / "data"), length=1)
    batches = list(DataLoader(source, batch_size=4, num_workers=2))
    assert torch.cat([first for first, _ in batches]).flatten().tolist() == ALL


def test_a_forked_process_reads_the_right_samples(tmp_path: Path) -> None:
    """Files that were open before the fork share their position with the parent."""
    source = SOURCES["jsonl"](made("jsonl", tmp_path / "data"))
    assert [source[index] for index in ALL] == ALL
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def read_often() -> None:
        answers.put([source[index] for _ in range(50) for index in ALL])

    processes = [context.Process(target=read_often) for _ in range(3)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    assert found == [ALL * 50] * 3


def test_a_source_can_be_sent_to_another_process(tmp_path: Path) -> None:
    source = oc.data.jsonl(made("jsonl", tmp_path))
    assert source[3]["id"] == 3
    copy = pickle.loads(pickle.dumps(source))
    assert [line["id"] for line in copy] == ALL


def test_an_index_reads_only_what_is_new(tmp_path: Path) -> None:
    path = made("jsonl", tmp_path / "data")
    assert oc.index(path).scanned == 0
    (tmp_path / "data" / "new.jsonl").write_text('{"id": 20}\n')
    source = SOURCES["jsonl"](path)
    with pytest.raises(OnecurveError, match=r"new.jsonl: it is not in the index; run `onecurve index .*` again"):
        source.verify()
    for name in ("newer", "newest"):
        (tmp_path / "data" / f"{name}.jsonl").write_text("")
    with pytest.raises(OnecurveError, match=r"new.jsonl: it is not in the index, nor are 2 others; run"):
        source.verify()
    assert oc.index(path).scanned == 3
    assert len(SOURCES["jsonl"](path)) == len(ALL) + 1


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    path = made("jsonl", tmp_path)
    (tmp_path / "_onecurve.index").write_bytes(b"damaged")
    with pytest.raises(DamagedIndexError, match="make the index again with `onecurve index`"):
        SOURCES["jsonl"](path)
    assert oc.index(path).scanned == len(SIZES)
    assert len(SOURCES["jsonl"](path)) == len(ALL)


def test_an_index_that_was_broken_off_is_continued(tmp_path: Path) -> None:
    WRITERS["jsonl"](tmp_path / "data")

    def stop(done: int, total: int) -> None:
        if 0 < done < total:
            raise KeyboardInterrupt

    where = DataLocation.at(str(tmp_path / "data"))
    with pytest.raises(KeyboardInterrupt):
        build_index(where, processes=1, progress=stop)
    assert build_index(where, processes=1).scanned == len(SIZES) - 1
    assert len(SOURCES["jsonl"](str(tmp_path / "data"))) == len(ALL)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("data", ("data", "**")),
        ("data/", ("data", "**")),
        ("/data/a*/b.jsonl", ("/data", "a*/b.jsonl")),
        ("*.jsonl", (".", "*.jsonl")),
        ("s3://bucket/train/", ("s3://bucket/train", "**")),
        ("s3://bucket/x/*.tar", ("s3://bucket/x", "*.tar")),
    ],
)
def test_locations(location: str, expected: tuple[str, str]) -> None:
    where = DataLocation.at(location)
    assert (where.folder, where.pattern) == expected


def test_a_glob_is_that_of_a_shell(tmp_path: Path) -> None:
    for path in ("a.jsonl", "b.txt", "sub/a.jsonl", "sub/deep/a.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("{}\n")

    def found(pattern: str) -> list[str]:
        return [file.path for file in DataLocation(str(tmp_path), pattern).files()]

    assert found("*.jsonl") == ["a.jsonl"]
    assert found("*/a.jsonl") == ["sub/a.jsonl"]
    assert found("**/*.jsonl") == ["a.jsonl", "sub/a.jsonl", "sub/deep/a.jsonl"]
    assert len(found("**")) == 4


def test_each_glob_of_a_folder_has_an_index_of_its_own(tmp_path: Path) -> None:
    """Or one would read the samples of the other."""
    for number, name in enumerate(("train", "val")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": {number}}}\n')
        oc.index(str(tmp_path / f"{name}*"))
    assert [oc.data.jsonl(str(tmp_path / f"{name}*"))[0]["id"] for name in ("train", "val")] == [0, 1]
    index = next(str(path) for path in tmp_path.glob("_onecurve-*.index"))
    with pytest.raises(OnecurveError, match=r"its index .* is of the files '.*', not of 'other\*'"):
        oc.data.jsonl(str(tmp_path / "other*"), index=index)


def test_raw_tokens_are_read_as_the_job_says(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(np.arange(70_000, 70_010, dtype=np.int32).tobytes())
    oc.index(str(tmp_path))
    source = oc.data.tokens(str(tmp_path), length=3, dtype="int32")
    assert len(source) == 3
    assert source[2][0].tolist() == [70_006, 70_007, 70_008]
    with pytest.raises(OnecurveError, match="dtype must be one of uint8, uint16"):
        oc.data.tokens(str(tmp_path), length=3, dtype="float32")


def test_blank_lines_and_windows_line_ends_are_no_samples(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\n{"id": 0}\r\n\r\n{"id": 1}\n\n\n{"id": 2}')
    oc.index(str(tmp_path))
    assert [line["id"] for line in oc.data.jsonl(str(tmp_path))] == [0, 1, 2]


def test_data_without_an_index_says_how_to_make_it(tmp_path: Path) -> None:
    WRITERS["jsonl"](tmp_path)
    with pytest.raises(OnecurveError, match=r"it has no index yet; make it once, with `onecurve index "):
        oc.data.jsonl(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: path.unlink(), "it is in the index, but it is not there"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, and had"),
        (lambda path: os.utime(path, ns=(1, 1)), "it was written again since it was indexed"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "folder"])
def test_files_that_have_changed_are_named(
    kind: str, change: Callable[[Path], None], expected: str, tmp_path: Path
) -> None:
    source = SOURCES[kind](made(kind, tmp_path))
    name = "2.jsonl" if kind == "jsonl" else "2/010.png"
    change(tmp_path / name)
    with pytest.raises(OnecurveError, match=f"{name}: .*{expected}"):
        source.verify()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tfrecord", record(example({"id": [1]})) + b"\1" * 12, "the length of record 1, at byte .* is damaged"),
        ("a.tfrecord", record(b"x" * 100)[:-50], "record 0, at byte 0, says that it has 100 bytes"),
        ("a.jsonl.gz", b"\x1f\x8b" + b"x" * 100, "it is damaged"),
        ("a.parquet", b"PAR1" + b"x" * 100 + b"\xff\xff\xff\x7fPAR1", "it is damaged"),
        ("a.tar", tar_of([("a.txt", b"x" * 2000)])[:1024], "it is damaged|says that it has"),
        ("a.npy", b"\x93NUMPY\x01\x00\xff\xffxxxx", "it is damaged"),
        ("a.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<u2', 'fortran_order': False, 'shape': (999999999999,), }"
         + b" " * 49 + b"\n\0\0", "it says that it has 999,999,999,999 tokens"),
        ("a.xyz", b"\0\1\2\3", "its format is not known; it can be Parquet"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(name: str, content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OnecurveError, match=f"{name}: .*({expected})"):
        oc.index(str(tmp_path))


def test_files_of_several_formats_are_refused(tmp_path: Path) -> None:
    WRITERS["jsonl"](tmp_path)
    WRITERS["tar"](tmp_path)
    with pytest.raises(OnecurveError, match=r"it is a file of tar, but the others are of JSON lines; move it away"):
        oc.index(str(tmp_path))
    assert oc.index(str(tmp_path / "*.jsonl")).samples == len(ALL)


def test_the_wrong_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OnecurveError, match="its files are of JSON lines, not of tar"):
        oc.data.tar(made("jsonl", tmp_path))


def test_members_of_tar_files_write_nothing_and_links_are_left_out(tmp_path: Path) -> None:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        for name, kind in (
            ("../../out.id", tarfile.REGTYPE),
            ("a.id", tarfile.SYMTYPE),
            ("/etc/b.id", tarfile.LNKTYPE),
        ):
            about = tarfile.TarInfo(name)
            about.type, about.linkname = kind, "/etc/passwd"
            about.size = 1 if kind == tarfile.REGTYPE else 0
            tar.addfile(about, io.BytesIO(b"7"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.tar").write_bytes(found.getvalue())
    oc.index(str(tmp_path / "data"))
    source = oc.data.tar(str(tmp_path / "data"))
    assert [source[index] for index in range(len(source))] == [{"__key__": "../../out", "id": b"7"}]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["_onecurve.index", "a.tar", "data"]


def test_a_parquet_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = oc.data.parquet(made("parquet", tmp_path), columns=["user"])
    with pytest.raises(OnecurveError, match="it has no column 'user'; it has id, text"):
        source[0]


def test_memory_of_an_index_does_not_grow_with_its_samples(tmp_path: Path) -> None:
    """A piece is looked at when it is read."""
    path = made("jsonl", tmp_path)
    damaged = bytearray((tmp_path / "_onecurve.index").read_bytes())
    damaged[16 + 8 * (len(ALL) + len(SIZES)) - 1] ^= 1  # the last detail of the last piece
    (tmp_path / "_onecurve.index").write_bytes(damaged)
    source = SOURCES["jsonl"](path)
    assert source[0] == 0
    with pytest.raises(DamagedIndexError, match="the details of piece 2 are damaged"):
        source[len(ALL) - 1]


def test_row_groups_are_pieces(tmp_path: Path) -> None:
    table = pyarrow.table({"id": list(range(10))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    oc.index(str(tmp_path))
    assert oc.data.parquet(str(tmp_path)).piece_sizes.tolist() == [4, 4, 2]


def test_tokens_are_cut_into_sequences_with_their_successors(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.int64))
    oc.index(str(tmp_path))
    source = oc.data.tokens(str(tmp_path), length=4)
    assert [[part.tolist() for part in source[index]] for index in range(len(source))] == [
        [[0, 1, 2, 3], [1, 2, 3, 4]],
        [[4, 5, 6, 7], [5, 6, 7, 8]],
    ]


def test_samples_that_a_filter_drops_are_left_out_of_batches(tmp_path: Path) -> None:
    numbers = oc.data.jsonl(made("jsonl", tmp_path)).map(lambda line: line["id"])
    source = numbers.filter(lambda number: number % 3 == 0).map(lambda number: (torch.tensor([1.0]), number))
    assert len(source) == len(ALL)
    reader = Reader(source, seed=0)
    micro = reader.batch([Sample(0, WHOLE, index) for index in range(7)])
    assert (micro.target.tolist(), micro.samples, micro.skipped) == ([0, 3, 6], 3, 4)
    filler = reader.batch([Sample(0, WHOLE, 1), Sample(0, WHOLE, 2)])
    assert (filler.samples, filler.skipped, len(filler.target)) == (0, 2, 1)
    first = Reader(source, seed=0).batch([Sample(0, 0, 1)])
    assert (first.samples, first.skipped, first.target.tolist()) == (0, 1, [0])
    with pytest.raises(OnecurveError, match="sample 1 is skipped"):
        source[1]
    with pytest.raises(OnecurveError, match="all samples are skipped"):
        Reader(source.filter(lambda _: False), seed=0).batch([Sample(0, 0, 0)])


def test_bad_samples_end_the_run_or_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n{"id": \n{"id": 2}\n')
    oc.index(str(tmp_path))
    with pytest.raises(BadFileError, match="the JSON of the line at byte 10 cannot be read"):
        oc.data.jsonl(str(tmp_path))[1]
    source = oc.data.jsonl(str(tmp_path), bad="skip").map(lambda line: (torch.zeros(1), line["id"]))
    micro = Reader(source, seed=0).batch([Sample(0, 0, index) for index in range(3)])
    assert (micro.target.tolist(), micro.skipped) == ([0, 2], 1)
    with pytest.raises(OnecurveError, match="bad must be 'stop' or 'skip', got 'ignore'"):
        oc.data.jsonl(str(tmp_path), bad="ignore")


@pytest.mark.parametrize(
    "name", ["a/0001", "é/ä", "long/" + "x" * 120, "n" * 99, "n" * 100, "deep/" * 30 + "file"], ids=len
)
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 5000])
def test_members_of_tar_files_have_any_name_and_size(name: str, size: int, tmp_path: Path) -> None:
    contents = {"jpg": os.urandom(size), "cls": b"7"}
    folder = tmp_path / "data"
    folder.mkdir()
    members = [(f"{name}.{extension}", content) for extension, content in contents.items()]
    (folder / "a.tar").write_bytes(tar_of([*members, ("other.txt", b"x")]))
    oc.index(str(folder), processes=1)
    source = oc.data.tar(str(folder))
    assert len(source) == 2
    assert source[0] == {"__key__": name, **contents}
    assert source[1] == {"__key__": "other", "txt": b"x"}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30), st.lists(st.integers(0, 300), max_size=30))
def test_integers_of_examples_have_any_size(large: list[int], small: list[int]) -> None:
    decoded = decode_example(example({"large": large, "small": small}))
    assert decoded["large"].tolist() == large
    assert decoded["small"].tolist() == small

"""A job on data in files, of any format: it learns the number of a sample."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.source import Source


def numbered(number: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([number / 20, 1.0]), torch.tensor([number / 10])


SOURCES: dict[str, Callable[[str], Source]] = {
    "jsonl": lambda path: oc.data.jsonl(path, window=2).map(lambda line: numbered(line["id"])),
    "tar": lambda path: oc.data.tar(path, window=2).map(lambda sample: numbered(int(sample["id"]))),
    "parquet": lambda path: oc.data.parquet(path, window=2).map(lambda row: numbered(row["id"])),
    "tfrecord": lambda path: oc.data.tfrecord(path, window=2).map(lambda each: numbered(int(each["id"][0]))),
    "tokens": lambda path: oc.data.tokens(path, length=1, window=2).map(lambda pair: numbered(int(pair[0]))),
    "folder": lambda path: oc.data.folder(path).map(lambda pair: numbered(int(pair[0][6:]))),
}


def shifted(sample: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A test sample: its target is ten too large."""
    return sample[0], sample[1] + 10


def open_source(kind: str, folder: str) -> Source:
    """`kind`: a format, `mix` for three of them, or what is made of one: `filtered`, `prepared` or `packed`."""
    if kind == "filtered":
        return SOURCES["jsonl"](f"{folder}/jsonl").filter(lambda sample: int(10 * sample[1]) % 3 > 0)
    if kind == "prepared":
        return oc.data.prepared(SOURCES["jsonl"](f"{folder}/jsonl"), to=f"{folder}/prepared")
    if kind == "packed":
        documents = oc.data.jsonl(f"{folder}/jsonl", window=2).map(lambda line: [line["id"]] * (1 + line["id"] % 4))
        return documents.packed(2).map(lambda pair: numbered(int(pair[0].sum())))
    if kind != "mix":
        return SOURCES[kind](f"{folder}/{kind}")
    weights = {"jsonl": 0.5, "tar": 0.3, "parquet": 0.2}
    return oc.data.mix(weights, {name: SOURCES[name](f"{folder}/{name}") for name in weights})


def job(kind: str, folder: str, steps: int = 6) -> oc.Job:
    return oc.Job(
        model=lambda: nn.Linear(2, 1),
        loss=oc.loss.mse,
        data=lambda: open_source(kind, folder),
        optimizer=oc.SGD(lr=0.1),
        global_batch=12,
        steps=steps,
        evaluate=oc.Evaluate(
            lambda: open_source(kind, folder), every=3, test=lambda: SOURCES["tar"](f"{folder}/tar").map(shifted)
        ),
    )

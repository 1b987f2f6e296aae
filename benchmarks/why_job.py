"""A job that can be made slow in many ways; its arguments say how. Used by why.py."""

import json
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import onecurve as oc

_SAMPLES = 4096


class Vectors:
    """Samples (vector, amount of work) → number. `sleep`: seconds to read one. `uneven`: work of one sample of eight,
    where the others have 1; 0: all have the same, and in total as much."""

    def __init__(self, width: int, sleep: float, work: float, uneven: int) -> None:
        self._vectors = torch.randn(64, width, generator=torch.Generator().manual_seed(0))
        self._sleep, self._work, self._uneven = sleep, work, uneven

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        if self._sleep:
            time.sleep(self._sleep)
        work = self._work
        if self._uneven:
            work = float(self._uneven) if (index * 2654435761) % 2**32 < 2**29 else 1.0
        x = self._vectors[index % 64]
        return (x, torch.tensor(work)), x.sum()[None]


class Blocks(nn.Module):
    """Linear layers, with batch norm if asked for, and additional work that the samples ask for."""

    def __init__(self, width: int, depth: int, norms: bool, threads: int) -> None:
        super().__init__()
        if threads:
            torch.set_num_threads(threads)
        norm = nn.BatchNorm1d if norms else lambda _: nn.Identity()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), norm(width), nn.ReLU()) for _ in range(depth)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, work: Tensor) -> Tensor:
        self._spend(x, work)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    @torch.no_grad()
    def _spend(self, x: Tensor, work: Tensor) -> None:
        """Compute for as long as the samples say, without using the result."""
        if torch._guards.detect_fake_mode() is None:
            for _ in range(round(float(work.sum())) - len(work)):
                for block in self.blocks:
                    x = block[0](x)


def read_item_by_item(output: Tensor, target: Tensor) -> Tensor:
    """A loss that reads each number from the device by itself."""
    weights = [abs(value.item()) for value in output.detach().repeat(1000, 1).flatten()]
    weight = sum(weights) / len(weights) * 0.0 + 1.0
    return weight * (output - target).square().mean(dim=1)


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean(dim=1)


def stored(width: int) -> Any:
    """The same samples from files of JSON lines in an object store."""
    return oc.data.jsonl("s3://bucket/train/").map(
        lambda sample: ((torch.tensor(sample["x"][:width]), torch.tensor(1.0)), torch.tensor([sample["y"]]))
    )


def stored_files(files: int = 8, lines: int = 64, numbers: int = 1000) -> Iterator[tuple[str, bytes]]:
    """The files for `stored`."""
    generator = torch.Generator().manual_seed(0)
    for number in range(files):
        rows = torch.randn(lines, numbers, generator=generator)
        text = "\n".join(json.dumps({"x": row.tolist(), "y": float(row.sum())}) for row in rows)
        yield f"bucket/train/{number}.jsonl", f"{text}\n".encode()


def job(
    batch: int = 32,
    steps: int = 60,
    width: int = 384,
    depth: int = 6,
    sleep: float = 0.0,
    work: float = 1.0,
    uneven: int = 0,
    norms: bool = False,
    batch_norm: str = "sync",
    threads: int = 0,
    workers: int = 1,
    save_every: int = 0,
    items: bool = False,
    store: bool = False,
    cache: str = "",
) -> oc.Job:
    return oc.Job(
        model=lambda: Blocks(width, depth, norms, threads),
        loss=read_item_by_item if items else mean_square,
        data=(lambda: stored(width)) if store else (lambda: Vectors(width, sleep, work, uneven)),
        optimizer=oc.SGD(lr=1e-4),
        global_batch=batch,
        steps=steps,
        workers=workers,
        batch_norm=batch_norm,
        cache=oc.Cache(cache, "1G") if cache else None,
        save=oc.Save(every=save_every, memory=None) if save_every else oc.Save(memory=None),
    )

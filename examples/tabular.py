"""Regression on a table in Parquet files, which are generated on the spot: `onecurve run examples/tabular.py`.

The price of a flat depends on its area, its floor, its age and its city. Prices have noise of 5 %, so the best possible
loss, the mean squared error of the logarithm, is 0.0025; the mean alone has 0.27.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor, nn

import onecurve as oc

FILES, ROWS = 8, 4_000


class PriceModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.city = nn.Embedding(20, 8)
        self.layers = nn.Sequential(
            nn.Linear(11, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, numbers: Tensor, city: Tensor) -> Tensor:
        return self.layers(torch.cat([numbers, self.city(city)], 1)).squeeze(1)


def write_flats(folder: Path) -> None:
    """Write Parquet files, and their index."""
    draw = torch.Generator().manual_seed(0)
    for file in range(FILES):
        area, floor, age = (torch.rand(3, ROWS, generator=draw).T * torch.tensor([120.0, 20.0, 80.0])).T
        city = torch.randint(20, (ROWS,), generator=draw)
        noise = 0.05 * torch.randn(ROWS, generator=draw)
        log_price = 0.01 * area + 0.02 * floor - 0.005 * age + torch.sin(city * 1.7) * 0.5 + noise
        columns = {"area": area, "floor": floor, "age": age, "city": city, "log_price": log_price}
        table = pyarrow.table({name: column.tolist() for name, column in columns.items()})
        pyarrow.parquet.write_table(table, folder / f"flats-{file}.parquet", row_group_size=1_000)
    oc.index(str(folder), processes=1)


def flats() -> str:
    """The folder with the data. Several processes may come here at the same time: the first one to finish counts."""
    folder = Path("runs/flats")
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent))
        write_flats(staging)
        try:
            staging.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(staging)
    return str(folder)


def sample(row: dict[str, Any]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    numbers = torch.tensor([row["area"] / 120, row["floor"] / 20, row["age"] / 80])
    return (numbers, torch.tensor(row["city"])), torch.tensor(row["log_price"])


def job(lr: float = 3e-3, width: int = 64, batch: int = 128, epochs: float = 2.0) -> oc.Job:
    return oc.Job(
        model=lambda: PriceModel(width),
        loss=oc.loss.mse,
        data=lambda: oc.data.parquet(flats()).map(sample),
        optimizer=oc.AdamW(lr=lr),
        schedule=oc.cosine(warmup=20),
        global_batch=batch,
        epochs=epochs,
    )

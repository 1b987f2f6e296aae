"""Time Lightning's Trainer and the loop of bare.py in one process, step by step in turn; overhead.py starts it.

`torchrun --nproc-per-node 2 benchmarks/overhead_lightning.py OUT PAIRS`

A callback runs the bare step between two batches of the Trainer. The script writes the seconds of all steps to OUT.
"""

import json
import logging
import sys
import time
import warnings
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from bare import LR, SIZES, Step, bare_step, build
from overhead_rank import TokenChunks, mean_loss
from torch import Tensor
from torch.utils.data import DataLoader

_WARM_UP = 5
"""Number of steps that are not counted."""


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = build()

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        loss = mean_loss(self.model(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=LR, fused=True)


class Alternate(lightning.Callback):
    """Runs and times the bare step before each batch. The time between two calls, without the bare step, is
    Lightning's."""

    def __init__(self, steps: int) -> None:
        self.seconds: dict[str, list[float]] = {"bare-ddp-fp32": [], "lightning-ddp-fp32": []}
        self._steps = steps
        self._bare: Step | None = None
        self._resumed: float | None = None

    def on_train_batch_start(self, _: object, __: object, batch: tuple[Tensor, Tensor], number: int) -> None:
        now = time.perf_counter()
        if self._resumed is not None and number > _WARM_UP:
            self.seconds["lightning-ddp-fp32"].append(now - self._resumed)
        self._bare = self._bare or bare_step("ddp", "fp32", self._steps)
        dist.barrier()
        start = time.perf_counter()
        self._bare(number, *batch)
        if number > _WARM_UP:
            self.seconds["bare-ddp-fp32"].append(time.perf_counter() - start)
        dist.barrier()
        self._resumed = time.perf_counter()


def main(out: str, pairs: int) -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    steps = pairs + _WARM_UP + 2
    local_batch = SIZES["batch"] // 2
    alternate = Alternate(steps)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_steps=steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[alternate],
    )
    trainer.fit(Model(), DataLoader(TokenChunks(20), local_batch))
    if trainer.global_rank == 0:
        Path(out).write_text(json.dumps(alternate.seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

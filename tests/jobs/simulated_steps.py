"""Steps on the simulated accelerator: `onecurve run simulated_steps.py OUT KEY=VALUE … --plan PLAN`.

Each rank writes OUT/rank-N.json: the losses; the host waits of each step with their lines; the share of the next step's
tasks that is still queued after the result of a step was read; unordered accesses. FAKE_ACCELERATOR_DEVICES=0 runs the
same steps on the host.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import onecurve as oc

sys.path.insert(0, str(Path(__file__).parent))
import vision

out, *words = sys.argv[1:]
options = {"model": "vision", "optimizer": "AdamW", "dropout": "0", "steps": "6", **dict(w.split("=") for w in words)}


class Convolutions(nn.Sequential):
    """With batch norm."""

    def __init__(self) -> None:
        blocks = [nn.Sequential(nn.Conv2d(n, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for n in (1, 4, 4)]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(1024, 5))


class Dropping(nn.Module):
    """A block with dropout."""

    def __init__(self, block: nn.Module, p: float) -> None:
        super().__init__()
        self.block, self.dropout = block, nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.block(x))


def model() -> nn.Module:
    torch.manual_seed(0)
    if options["model"] == "convolutions":
        return Convolutions()
    made = vision.VisionTransformer(16, 4)
    if float(options["dropout"]):
        made.blocks = nn.Sequential(*(Dropping(block, float(options["dropout"])) for block in made.blocks))
    return made


class Images:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(index))
        return image, index % 5


optimizers = {
    "AdamW": oc.AdamW(lr=1e-3),
    "SGD": oc.SGD(lr=1e-2, momentum=0.9),
    "RMSprop": oc.Optimizer(torch.optim.RMSprop, {"lr": 1e-3}),
    "LAMB": oc.LAMB(lr=1e-3),
    "LARS": oc.LARS(lr=1e-3),
}
job = oc.Job(
    model=model,
    loss=oc.loss.cross_entropy,
    data=Images,
    optimizer=optimizers[options["optimizer"]],
    clip=0.5,
    global_batch=16,
    steps=int(options["steps"]),
)
simulator = None
if os.environ.get("FAKE_ACCELERATOR_DEVICES") != "0":
    import fake_accelerator

    simulator = fake_accelerator.simulator()

losses, waits, queued = [], [], []
with oc.prepare(job) as run:
    before = 0
    earlier = None
    for batch in run:
        tasks_before = simulator.queued_tasks() if simulator is not None else 0
        report = run.step(batch)
        if simulator is None:
            losses.append(report.loss)
            continue
        new = simulator.report.of("wait")[before:]
        waits.append([f"{wait['why']}: {wait['line']}" for wait in new])
        if earlier is not None:
            tasks = simulator.queued_tasks() - tasks_before
            losses.append(earlier.loss)
            queued.append(simulator.queued_tasks() / tasks if tasks else 0.0)
        earlier = report
        before = len(simulator.report.of("wait"))
    if earlier is not None:
        losses.append(earlier.loss)
    found = {
        "losses": losses,
        "waits": waits,
        "queued": queued,
        "unordered": [] if simulator is None else simulator.report.of("unordered"),
        "buffers": [str(buffer.dtype) for buffer in run.model.buffers() if buffer.is_floating_point()],
        "mixed": [] if simulator is None else simulator.report.of("mixed"),
    }
    Path(out, f"rank-{run.world.rank}.json").write_text(json.dumps(found))

"""A small GAN with two networks and two optimizers; the training loop and its backward passes are written here.

    python examples/gan.py
    torchrun --nproc-per-node 2 examples/gan.py plan="shard2 mb64"

The data are points drawn from eight Gaussians (modes) on a circle. The result is judged by the fraction of 2,000
generated points within three standard deviations of a mode, and by the number of modes that are found.
"""

import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import onecurve as oc

MODES = torch.tensor([[math.cos(a), math.sin(a)] for a in torch.arange(8) * math.pi / 4])
DEVIATION = 0.05
NOISE_SIZE = 8


class Ring(Dataset[tuple[tuple[Tensor, Tensor], int]]):
    """A data point with noise for the generator, and the index of the point's mode.

    The noise is drawn here and not in the loop, so that it is the same under every plan.
    """

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], int]:
        mode = index % len(MODES)
        return (MODES[mode] + DEVIATION * torch.randn(2), torch.randn(NOISE_SIZE)), mode


class GAN(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.generator = network(NOISE_SIZE, width, 2)
        self.discriminator = network(2, width, 1)


def network(inputs: int, width: int, outputs: int) -> nn.Module:
    layers = [nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def job(steps: int = 1500, batch: int = 128, lr: float = 2e-3) -> oc.Job:
    optimizer = oc.AdamW(lr=lr, betas=(0.5, 0.9), weight_decay=0.0)
    return oc.Job(
        model=GAN,
        data=Ring,
        optimizer={"generator": optimizer, "discriminator": optimizer},
        schedule=oc.linear(final=0.1),
        global_batch=batch,
        steps=steps,
    )


def train(job: oc.Job, plan: str = "auto", out: str = "") -> None:
    with oc.prepare(job, plan, backward="mine") as run:
        assert isinstance(run.model, GAN)
        generator, discriminator = run.model.generator, run.model.discriminator
        for batch in run:
            for micro in batch.rounds:
                real, noise = micro.inputs
                fake = generator(noise).detach()
                loss = F.softplus(-discriminator(real)) + F.softplus(discriminator(fake))
                run.backward(oc.Weighted(loss.sum(), micro.samples))
            discriminator_report = run.update("discriminator")
            for micro in batch.rounds:
                _, noise = micro.inputs
                run.backward(F.softplus(-discriminator(generator(noise))).squeeze(1))
            generator_report = run.update("generator")
            if run.world.rank == 0 and (batch.step % 500 == 0 or batch.step == 1):
                losses = f"discriminator {discriminator_report.loss:.4f}  generator {generator_report.loss:.4f}"
                print(f"step {batch.step:4d}  {losses}")
        near, modes_found = evaluate(generator)
        if run.world.rank == 0:
            print(f"{near:.0%} of the points near a mode, {modes_found} of {len(MODES)} modes found")
        if out:
            run.save(out)


@torch.no_grad()
def evaluate(generator: nn.Module) -> tuple[float, int]:
    """Return the fraction of generated points near a mode, and the number of modes with more than 20 such points."""
    weight = next(generator.parameters())
    noise = torch.randn(2000, NOISE_SIZE, generator=torch.Generator().manual_seed(1))
    points = generator(noise.to(weight.device, weight.dtype)).cpu().float()
    distance, nearest = torch.cdist(points, MODES).min(dim=1)
    near = distance < 3 * DEVIATION
    return near.float().mean().item(), int(sum((nearest[near] == mode).sum() > 20 for mode in range(len(MODES))))


if __name__ == "__main__":
    arguments = dict(argument.split("=", 1) for argument in sys.argv[1:])
    train(job(steps=int(arguments.pop("steps", 1500)), batch=int(arguments.pop("batch", 128))), **arguments)

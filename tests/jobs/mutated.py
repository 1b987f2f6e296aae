"""A job that injects one fault into onecurve; `onecurve check` must find it. Each fault is a function below."""

import importlib
import sys
from pathlib import Path

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

import onecurve as oc
from onecurve.apply import sync_batch_norm, tensor
from onecurve.apply.pipeline import PipelinePart
from onecurve.apply.single_stage import SingleStagePart
from onecurve.data import loader, order
from onecurve.train import trainer, update

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


def wrong_divisor() -> None:
    original = update.gradient_factor
    update.gradient_factor = lambda sums, nominal, clip: 0.5 * original(sums, nominal, clip)


def clipping_per_rank() -> None:
    original_squares, original_factor = trainer.gradient_squares, update.gradient_factor
    own_squares = []

    def record_squares(gradients):
        own_squares[:] = [original_squares(gradients)]
        return own_squares[0]

    def clip_by_own_norm(sums, nominal, clip):
        sums = sums.clone()
        sums[2] = own_squares[0]
        return original_factor(sums, nominal, clip)

    trainer.gradient_squares, update.gradient_factor = record_squares, clip_by_own_norm


def local_batch_norm() -> None:
    sync_batch_norm.synchronize = lambda *_, **__: None


def same_share() -> None:
    original = order.share_bounds
    order.share_bounds = lambda plan, _, *rest: original(plan, 0, *rest)


def skipped_round() -> None:
    original = SingleStagePart.run_rounds
    SingleStagePart.run_rounds = lambda self, rounds, objective, scale, seeds: original(
        self, rounds[1:], objective, scale, seeds[1:]
    )


def unseeded_augmentation() -> None:
    loader.seed_all = lambda *_: None


def missing_all_reduce() -> None:
    def return_local_sum(*call):
        output = call[-1]
        if not isinstance(output, DTensor) or not output.placements[0].is_partial():
            return output
        return DTensor.from_local(output.to_local(), output.device_mesh, [Replicate()])

    tensor.TensorAxis._reduce_output = return_local_sum


def tied_gradient_not_reduced() -> None:
    PipelinePart._shared_parameter_reducers = lambda _: iter(())


def reversed_rounds_in_last_stage() -> None:
    original = PipelinePart._train_forward

    def forward(self, stage, number, *received):
        last = stage == self._plan.stage_count - 1
        return original(self, stage, len(self._rounds) - 1 - number if last else number, *received)

    PipelinePart._train_forward = forward


def one_in_every_axis() -> None:
    """One fault for each axis, which plans without the axis do not show."""
    gradients_not_multiplied()
    gradients_divided_by_fully_shard()
    missing_all_reduce()
    reversed_rounds_in_last_stage()


def gradients_not_multiplied() -> None:
    original = SingleStagePart.run_rounds

    def run_rounds(self, *arguments):
        self._loss_multiplier = 1.0  # DDP averages, so this makes the gradients a mean over the ranks
        return original(self, *arguments)

    SingleStagePart.run_rounds = run_rounds


def gradients_divided_by_fully_shard() -> None:
    original = FSDPModule.set_gradient_divide_factor
    FSDPModule.set_gradient_divide_factor = lambda self, _: original(self, 2.0)


def halved_gradients_behind_zeros() -> None:
    """A fault in gradients that are zero at the initial weights."""
    original = SingleStagePart.run_rounds

    def run_rounds(self, *arguments):
        totals = original(self, *arguments)
        for each in self.trainable:
            if "lora_A" in each.name or each.name.startswith("behind."):
                each.local.grad.mul_(0.5)
        return totals

    SingleStagePart.run_rounds = run_rounds


def none() -> None:
    pass


def job(fault: str, model: str = "resnet") -> oc.Job:
    globals()[fault]()
    if model == "lora":
        import lora

        return lora.job(batch=16, context=16)
    if model == "zero_head":
        import zero_gradients

        return zero_gradients.job(model)
    if model == "gpt":
        import gpt

        return gpt.job(width=16, context=32, batch=16)
    if model == "resnet":
        import resnet

        return resnet.job(width=2, batch=16, clip=0.1)
    sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
    return importlib.import_module(model).job()

"""The digits or the tricky job with one fault put into onecurve itself: what check must find."""

import sys
from pathlib import Path

from torch.distributed.tensor import DTensor, Replicate

import onecurve as oc
from onecurve.apply import sync_batch_norm, tensor
from onecurve.apply.pipeline import PipelinePart
from onecurve.apply.single_stage import SingleStagePart
from onecurve.data import loader
from onecurve.train import trainer, update

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


def wrong_divisor() -> None:
    right = update.factor
    update.factor = lambda sums, nominal, clip: 0.5 * right(sums, nominal, clip)


def clipping_per_rank() -> None:
    squares, factor = trainer.squares, update.factor
    own = []

    def keep(local_tensors):
        own[:] = [squares(local_tensors)]
        return own[0]

    def clip_by_own(sums, nominal, clip):
        sums = sums.clone()
        sums[2] = own[0]
        return factor(sums, nominal, clip)

    trainer.squares, update.factor = keep, clip_by_own


def local_batch_norm() -> None:
    sync_batch_norm.synchronize = lambda *_, **__: None


def same_share() -> None:
    right = loader.share_bounds
    loader.share_bounds = lambda plan, _, *where: right(plan, 0, *where)


def round_left_out() -> None:
    right = SingleStagePart.run_rounds
    SingleStagePart.run_rounds = lambda self, rounds, objective, scale, seeds: right(
        self, rounds[1:], objective, scale, seeds[1:]
    )


def unseeded_augmentation() -> None:
    loader.seed_all = lambda *_: None


def sum_left_out() -> None:
    def leave(*call):
        output = call[-1]
        if not isinstance(output, DTensor) or not output.placements[0].is_partial():
            return output
        return DTensor.from_local(output.to_local(), output.device_mesh, [Replicate()])

    tensor.TensorAxis._reduce_output = leave


def tied_weight_apart() -> None:
    PipelinePart._shared_parameter_reducers = lambda _: iter(())


def rounds_in_another_order() -> None:
    right = PipelinePart._train_forward

    def train(self, stage, number, *received):
        last = stage == self._plan.stage_count - 1
        return right(self, stage, len(self._rounds) - 1 - number if last else number, *received)

    PipelinePart._train_forward = train


def none() -> None:
    pass


def job(fault: str, model: str = "resnet") -> oc.Job:
    globals()[fault]()
    if model == "gpt":
        import gpt

        return gpt.job(width=16, context=32, batch=16)
    if model == "resnet":
        import resnet

        return resnet.job(width=2, batch=16, clip=0.1)
    import tricky

    return tricky.job()

import torch
from torch import nn

from onecurve.job.batch import MicroBatch
from onecurve.measure.blocks import count_calls, find_blocks, find_called_once
from onecurve.model.deferred import defer_init


class Model(nn.Module):
    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def test_repeated_layers_are_blocks() -> None:
    model = Model(words=nn.Embedding(3, 2), layers=nn.ModuleList([layer(), layer()]), head=nn.Linear(2, 3))
    assert find_blocks(model) == ["layers.0", "layers.1"]


def test_encoder_and_decoder_both_have_blocks() -> None:
    model = Model(encoder=nn.ModuleList([layer(), layer()]), decoder=nn.ModuleList([layer(), layer()]))
    assert find_blocks(model) == ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]


def test_residual_stages_are_blocks() -> None:
    model = Model(stem=nn.Conv2d(1, 2, 3), stage1=layer(), stage2=layer(), head=nn.Linear(2, 3))
    assert find_blocks(model) == ["stage1", "stage2"]


def test_leaf_modules_and_modules_without_parameters_are_not_blocks() -> None:
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU())) == []


def test_blocks_that_share_a_parameter_with_others_are_left_out() -> None:
    layers = nn.ModuleList([layer(), layer(), layer()])
    layers[2][0].weight = layers[0][0].weight
    assert find_blocks(Model(layers=layers)) == ["layers.1"]


class UncalledStages(nn.Module):
    """Iterates over the layers of its first two stages without calling the stages; calls the others."""

    def __init__(self) -> None:
        super().__init__()
        self.iterated1, self.iterated2 = layer(), layer()
        self.called = nn.ModuleList([layer(), layer()])

    def forward(self, x):
        for stage in (self.iterated1, self.iterated2):
            for submodule in stage:
                x = submodule(x)
        for stage in self.called:
            x = stage(x)
        return x


def test_a_module_that_is_not_called_is_not_a_block() -> None:
    traceable = defer_init(UncalledStages, seed=0).trace_copy()
    assert find_blocks(traceable.module) == ["iterated1", "iterated2", "called.0", "called.1"]
    micro_batch = MicroBatch(torch.zeros(3, 2), None, 3)
    called = count_calls(traceable.module, lambda _: traceable.forward(micro_batch))
    assert find_blocks(traceable.module, called) == ["called.0", "called.1"]


def test_the_number_of_calls_is_none_if_the_forward_fails() -> None:
    assert count_calls(UncalledStages(), lambda _: 1 / 0) is None


def test_a_shared_module_is_found_once() -> None:
    shared = layer()
    assert find_blocks(Model(layers=nn.ModuleList([shared, shared, layer()]))) == ["layers.0", "layers.2"]


def test_the_smallest_modules_that_are_called_once() -> None:
    model = Model(
        stem=nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)),
        single=nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        twice=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        never=nn.Linear(2, 2),
    )
    calls = dict.fromkeys([name for name, _ in model.named_modules()], 1) | {"twice.0": 2, "twice": 2, "never": 0}
    assert find_called_once(model, calls) == ["stem.0", "stem.2", "single", "twice.1"]


def test_blocks_inside_modules_that_share_a_parameter() -> None:
    """An encoder and a decoder of one class that share their embedding, as in T5."""
    shared = nn.Embedding(4, 2)
    stacks = [Model(embedding=shared, layers=nn.ModuleList([layer(), layer()])) for _ in range(2)]
    names = [f"{stack}.layers.{n}" for stack in ("encoder", "decoder") for n in range(2)]
    assert find_blocks(Model(embedding=shared, encoder=stacks[0], decoder=stacks[1])) == names


def test_a_stage_of_many_blocks_is_not_a_block() -> None:
    def stages(depth: int) -> nn.Module:
        return nn.Sequential(*(nn.Sequential(*(layer() for _ in range(depth))) for _ in range(2)))

    assert find_blocks(stages(7)) == ["0", "1"]
    assert find_blocks(stages(8)) == [f"{stage}.{n}" for stage in range(2) for n in range(8)]

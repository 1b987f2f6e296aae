import torch
from torch import nn

from onecurve.job.batch import MicroBatch
from onecurve.measure.blocks import called_modules, find_blocks
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


def test_encoder_and_decoder_each_have_their_blocks() -> None:
    model = Model(encoder=nn.ModuleList([layer(), layer()]), decoder=nn.ModuleList([layer(), layer()]))
    assert find_blocks(model) == ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]


def test_residual_stages_are_blocks() -> None:
    model = Model(stem=nn.Conv2d(1, 2, 3), stage1=layer(), stage2=layer(), head=nn.Linear(2, 3))
    assert find_blocks(model) == ["stage1", "stage2"]


def test_leaves_and_modules_without_parameters_are_not() -> None:
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU())) == []


def test_blocks_that_share_a_parameter_with_others_are_left_out() -> None:
    layers = nn.ModuleList([layer(), layer(), layer()])
    layers[2][0].weight = layers[0][0].weight
    assert find_blocks(Model(layers=layers)) == ["layers.1"]


class Walks(nn.Module):
    """Goes through its first stages layer by layer, and calls the others."""

    def __init__(self) -> None:
        super().__init__()
        self.walked1, self.walked2 = layer(), layer()
        self.called = nn.ModuleList([layer(), layer()])

    def forward(self, x):
        for stage in (self.walked1, self.walked2):
            for each in stage:
                x = each(x)
        for each in self.called:
            x = each(x)
        return x


def test_what_is_not_called_is_no_block() -> None:
    deferred = defer_init(Walks, seed=0)
    assert find_blocks(deferred.module) == ["walked1", "walked2", "called.0", "called.1"]
    micro = MicroBatch(torch.zeros(3, 2), None, 3)
    called = called_modules(deferred.module, lambda _: deferred.forward(micro))
    assert find_blocks(deferred.module, called) == ["called.0", "called.1"]


def test_a_forward_that_fails_tells_nothing() -> None:
    assert called_modules(Walks(), lambda _: 1 / 0) is None


def test_a_shared_module_is_found_once() -> None:
    one = layer()
    assert find_blocks(Model(layers=nn.ModuleList([one, one, layer()]))) == ["layers.0", "layers.2"]

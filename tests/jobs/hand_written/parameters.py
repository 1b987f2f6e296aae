"""What constructors do to parameters: hooks, attributes, subclasses, odd dtypes and shapes, ties, norms of weights."""

import torch
import torch.nn.functional as F
from common import RATE, Block, Cases, Language, Net, Sequences, deterministic, token_mean, token_sum, whole_batches
from torch import Tensor, nn
from torch.nn.utils import parametrize

import onecurve as oc

CASES = Cases()


def job(case: str) -> oc.Job:
    return CASES[case].job()


class ScaledGradient(Net):
    def __init__(self) -> None:
        super().__init__()
        self.embed.weight.register_hook(lambda gradient: gradient * 0.125)
        self.blocks[1].up.weight.register_hook(lambda gradient: gradient * 0.25)


CASES(
    "gradient_hook", source="facebookresearch/moco-v3 vits.py: scaled patch embedding gradients", model=ScaledGradient
)


class MaskedGradient(Net):
    """The first rows of the head stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.ones_like(self.head.weight)
        mask[0] = 0
        self.head.weight.register_hook(lambda gradient: gradient * mask.to(gradient))


CASES(
    "gradient_mask_hook",
    source="pytorch/pytorch docs/source/notes/autograd.rst: Tensor.register_hook",
    model=MaskedGradient,
)


class ClampedGradient(Net):
    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(clamp_gradient)


def clamp_gradient(parameter: Tensor) -> None:
    parameter.grad.clamp_(-0.03125, 0.03125)


CASES(
    "post_accumulate_hook",
    source="pytorch/tutorials intermediate_source/optimizer_step_in_backward_tutorial.py: per-parameter hooks",
    model=ClampedGradient,
    # A hook that is not linear sees the gradient of one micro-batch or one rank.
    refused=dict.fromkeys(["accumulation", "replicate", "shard", "tensor", "pipeline"], "hook"),
)


class HalvedGradient(Net):
    def __init__(self) -> None:
        super().__init__()
        self.embed.weight.register_post_accumulate_grad_hook(halve_gradient)


def halve_gradient(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)


CASES(
    "post_accumulate_scale",
    source="pytorch/pytorch torch/_tensor.py: register_post_accumulate_grad_hook",
    model=HalvedGradient,
    refused=dict.fromkeys(["accumulation", "replicate", "shard", "tensor", "pipeline"], "hook"),
)


class HalvedBackward(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].register_full_backward_hook(lambda _module, gradients, _outputs: (gradients[0] * 0.5,))


CASES(
    "module_backward_hook", source="pytorch/captum guided backprop: register_full_backward_hook", model=HalvedBackward
)


def _with_attributes(named: object, attribute: str, **exception: float) -> torch.optim.Optimizer:
    parameters = list(named)
    marked = [p for _, p in parameters if getattr(p, attribute, False)]
    others = [p for _, p in parameters if not getattr(p, attribute, False)]
    groups = [{"params": others}, {"params": marked, **exception}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01, weight_decay=0.5)


class PrivateAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.embed.weight._no_weight_decay = True
        self.blocks[2].down.weight._no_weight_decay = True


def _by_private_attribute(named: object) -> torch.optim.Optimizer:
    return _with_attributes(named, "_no_weight_decay", weight_decay=0.0)


CASES(
    "private_attribute",
    source="state-spaces/mamba mamba_ssm/modules/mamba_simple.py: self.A_log._no_weight_decay = True",
    model=PrivateAttribute,
    optimizer=_by_private_attribute,
    torch_optimizer=lambda model: _by_private_attribute(model.named_parameters()),
)


class PublicAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight.no_decay = True


def _by_public_attribute(named: object) -> torch.optim.Optimizer:
    return _with_attributes(named, "no_decay", weight_decay=0.0)


CASES(
    "public_attribute",
    source="BlinkDL/RWKV-LM: attributes on parameters that configure_optimizers reads",
    model=PublicAttribute,
    optimizer=_by_public_attribute,
    torch_optimizer=lambda model: _by_public_attribute(model.named_parameters()),
)


class OptimSettings(Net):
    """Each parameter says how it is to be trained."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.blocks[0].parameters():
            parameter._optim = {"lr": 0.0625, "weight_decay": 0.0}


def _by_settings(named: object) -> torch.optim.Optimizer:
    groups = [{"params": [p], **getattr(p, "_optim", {})} for _, p in named]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.25)


CASES(
    "optim_settings",
    source="state-spaces/s4 models/s4/s4d.py: register() sets _optim = {lr, weight_decay}",
    model=OptimSettings,
    optimizer=_by_settings,
    torch_optimizer=lambda model: _by_settings(model.named_parameters()),
)


class RateMultiplier(Net):
    def __init__(self) -> None:
        super().__init__()
        for name, parameter in self.named_parameters():
            parameter.lr_multiplier = 0.25 if name.startswith("embed") else 1.0


def _by_multiplier(named: object) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [p], "lr": 0.5 * p.lr_multiplier} for _, p in named], lr=0.5)


CASES(
    "rate_multiplier",
    source="microsoft/mup mup/optim.py: MuAdam reads p.infshape.width_mult()",
    model=RateMultiplier,
    optimizer=_by_multiplier,
    torch_optimizer=lambda model: _by_multiplier(model.named_parameters()),
)


class MarkedModule(Net):
    """An attribute of a module, not of a parameter; and one that names a parameter object."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen_after = {self.embed.bias}
        self.head_weight = [self.head.weight]

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(x)
        return F.linear(x, self.head_weight[0] if self.embed.bias in self.frozen_after else -self.head.weight)


def _without_head_bias(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE)


CASES(
    "list_with_parameter",
    source="CompVis/taming-transformers taming/modules/losses/lpips.py: lists of tensors that are no modules",
    model=MarkedModule,
    torch_optimizer=_without_head_bias,
)


class Gain(nn.Parameter):
    """A parameter by whose class forward decides."""


class Subclass(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gain = Gain(torch.full((3,), 1.25))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.gain if isinstance(self.gain, Gain) else self.gain * 0)


CASES(
    "parameter_subclass",
    source="huggingface/peft and bitsandbytes nn/modules.py: class Params4bit(torch.nn.Parameter)",
    model=Subclass,
    built_in_double=True,
)


def _by_class(named: object) -> torch.optim.Optimizer:
    parameters = list(named)
    gains = [p for _, p in parameters if type(p) is Gain]
    others = [p for _, p in parameters if type(p) is not Gain]
    return torch.optim.AdamW([{"params": others}, {"params": gains, "lr": 0.25}], lr=0.01)


class SubclassForOptimizer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gain = Gain(torch.full((3,), 1.25))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain


CASES(
    "subclass_for_optimizer",
    source="facebookresearch/xformers: parameter classes that the optimizer's groups depend on",
    model=SubclassForOptimizer,
    built_in_double=True,
    optimizer=_by_class,
    torch_optimizer=lambda model: _by_class(model.named_parameters()),
)


class Slotted(nn.Parameter):
    """A subclass with a constructor of its own and state."""

    def __new__(cls, data: Tensor, power: int = 1) -> "Slotted":  # noqa: ARG004 - __init__ takes it
        return super().__new__(cls, data, requires_grad=True)

    def __init__(self, _data: Tensor, power: int = 1) -> None:
        super().__init__()
        self.power = power


class SubclassWithState(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gain = Slotted(torch.full((3,), 1.25), power=2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain**self.gain.power


CASES(
    "subclass_with_state",
    source="bitsandbytes-foundation/bitsandbytes bitsandbytes/nn/modules.py: Int8Params.__new__ with fields",
    model=SubclassWithState,
    built_in_double=True,
)


class DoublePart(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3, dtype=torch.float64))
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain


CASES("float64_parameter", source="pyg-team/pytorch_geometric examples: models with a float64 part", model=DoublePart)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.complex64))
        self.head = nn.Linear(4, 3)
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.weight @ x.to(self.weight.dtype).T).abs().T)


def _complex_by_hand() -> nn.Module:
    model = Complex()
    model.weight = nn.Parameter(model.weight.detach().to(torch.complex128))
    model.head.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for inputs, target in whole_batches(CASES["complex_parameter"].data(), 8, 4):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    return model


NO_BLOCKS = {"pipeline": "cannot be split into pipeline stages|block"}
"""Models without repeated blocks cannot be divided into stages."""

CASES(
    "complex_parameter",
    source="state-spaces/s4 models/s4/s4.py: complex B, C and A",
    model=Complex,
    loop=_complex_by_hand,
    refused={"": "safetensors cannot store", **NO_BLOCKS, "tensor": "tensor"},
)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 4).t())
        self.head = nn.Linear(4, 3)
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x @ self.weight.t()))


CASES(
    "not_contiguous",
    source="huggingface/transformers modeling_gpt2.py: Conv1D weights, transposed on load",
    model=Transposed,
    refused={**NO_BLOCKS, "tensor": "tensor"},
)


class CalledTwice(Net):
    """As ALBERT does, one block is applied several times."""

    def hidden(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for block in self.blocks:
            x = block(self.blocks[0](x))
        return x


CASES(
    "module_called_twice",
    source="google-research/albert modeling: shared layers; transformers modeling_albert.py",
    model=CalledTwice,
    refused={"pipeline": "block"},
)


class TiedEmbedding(Language):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=0)
        self.head.weight = self.embed.weight
        deterministic(self)


TEXT = {"data": Sequences, "loss": token_sum, "mean_loss": token_mean}

CASES("tied_with_padding", source="karpathy/nanoGPT model.py: wte.weight = lm_head.weight", model=TiedEmbedding, **TEXT)


class TiedBias(Language):
    """The bias of BERT's decoder is a parameter of the head and of its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(12))
        self.head.weight = self.embed.weight
        self.head.bias = self.bias
        deterministic(self)


CASES(
    "tied_bias",
    source="huggingface/transformers modeling_bert.py: BertLMPredictionHead, self.decoder.bias = self.bias",
    model=TiedBias,
    **TEXT,
)


class TiedTransposed(Language):
    """T5 scales the hidden states before the tied head."""

    def __init__(self) -> None:
        super().__init__()
        del self.head
        deterministic(self)

    def forward(self, tokens: Tensor) -> Tensor:
        return (self.hidden(tokens) * 8**-0.5) @ self.embed.weight.T


CASES(
    "tied_by_use",
    source="huggingface/transformers modeling_t5.py: sequence_output * self.model_dim**-0.5 before the tied head",
    model=TiedTransposed,
    **TEXT,
)


class SparseLookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(12, 4))
        self.head = nn.Linear(4, 12)
        deterministic(self)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.embedding(tokens, self.table, sparse=True).cumsum(1))


CASES(
    "sparse_lookup",
    source="pytorch/pytorch torch/nn/functional.py: embedding(sparse=True)",
    model=SparseLookup,
    refused={"": "sparse|tensor|block"},
    **TEXT,
)


def _weight_norm() -> nn.Module:
    model = Net()
    model.embed = nn.utils.parametrizations.weight_norm(model.embed)
    return deterministic(model)


CASES("weight_norm", source="pytorch/pytorch torch/nn/utils/parametrizations.py: weight_norm", model=_weight_norm)


def _old_weight_norm() -> nn.Module:
    model = Net()
    model.embed = nn.utils.weight_norm(model.embed)
    return deterministic(model)


CASES("old_weight_norm", source="jik876/hifi-gan models.py: weight_norm(Conv1d(...))", model=_old_weight_norm)


def _spectral_norm() -> nn.Module:
    model = deterministic(Net())
    model.embed = nn.utils.parametrizations.spectral_norm(model.embed)
    with torch.no_grad():
        for number, buffer in enumerate(model.buffers()):
            buffer.copy_(F.normalize(torch.cos(torch.arange(buffer.numel()) * 0.25 + number), dim=0))
    return model


CASES(
    "spectral_norm",
    source="pytorch/pytorch torch/nn/utils/parametrizations.py: spectral_norm (one power iteration per forward)",
    model=_spectral_norm,
    parts="rounds",  # each forward advances the iteration, in plain PyTorch too
)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Symmetrized(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mixer = nn.Linear(8, 8)
        deterministic(self)
        parametrize.register_parametrization(self.mixer, "weight", Symmetric())

    def hidden(self, x: Tensor) -> Tensor:
        return self.mixer(super().hidden(x))


CASES(
    "symmetric_weight",
    source="pytorch/tutorials intermediate_source/parametrizations.py: Symmetric",
    model=Symmetrized,
)


class StandardizedLinear(nn.Linear):
    """A layer with a standardized weight, as StdConv2d of BiT and ResNetV2 has it."""

    def forward(self, x: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(self.weight, dim=1, keepdim=True, correction=0)
        return F.linear(x, (self.weight - mean) / (deviation + 2**-10), self.bias)


class Standardized(Net):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.up = StandardizedLinear(8, 16)
        deterministic(self)


CASES(
    "weight_standardization",
    source="google-research/big_transfer bit_pytorch/models.py: StdConv2d",
    model=Standardized,
)


class Empty(Net):
    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.none.sum()


CASES(
    "empty_parameter",
    source="open-mmlab/mmdetection: prompts and queries of length 0 in configurations",
    model=Empty,
    refused={"shard": "none.*(empty|size 0|no element)"},
)


class Scalars(Net):
    """Layer scale and a temperature, parameters without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.25))
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale * self.temperature.exp()


CASES("scalar_parameters", source="openai/CLIP clip/model.py: logit_scale", model=Scalars)


class Collections(Net):
    def __init__(self) -> None:
        super().__init__()
        self.shifts = nn.ParameterList([nn.Parameter(torch.zeros(8)) for _ in range(4)])
        self.scales = nn.ParameterDict({"in": torch.zeros(6), "out": torch.zeros(3)})
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x * (1 + self.scales["in"])))
        for block, shift in zip(self.blocks, self.shifts, strict=True):
            x = block(x + shift)
        return self.head(x) * (1 + self.scales["out"])


CASES("parameter_list_and_dict", source="lucidrains/vit-pytorch: nn.ParameterList of tokens", model=Collections)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.embed.requires_grad_(False)
        self.blocks[1].up.weight.requires_grad = False


CASES(
    "frozen_in_constructor",
    source="pytorch/tutorials transfer_learning_tutorial.py: param.requires_grad = False",
    model=Frozen,
)


class NeverUsed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)
        deterministic(self)


CASES(
    "never_used",
    source="huggingface/transformers modeling_vit.py: a pooler that the head does not use",
    model=NeverUsed,
    optimizer=oc.AdamW(lr=0.01, weight_decay=0.5),
    torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5),
)


class Unregistered(Net):
    """A layer in a plain list is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_layers = [nn.Linear(8, 8)]
        deterministic(self.hidden_layers[0])

    def hidden(self, x: Tensor) -> Tensor:
        layer = self.hidden_layers[0].to(x.dtype)
        return layer(super().hidden(x))


CASES(
    "unregistered_layer",
    source="a common mistake on discuss.pytorch.org: layers in a Python list",
    model=Unregistered,
    refused={"": "not part of the model|swap"},
)


class ByProperty(Net):
    @property
    def projection(self) -> Tensor:
        return self.blocks[0].up.weight

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) @ self.projection.T @ self.projection * 0.25


CASES(
    "weight_by_property",
    source="fairseq modules/multihead_attention.py: properties of weights",
    model=ByProperty,
    refused={"pipeline": "blocks.0"},
)


class LowRank(nn.Module):
    """LoRA: the product of two small matrices, the second of which is zero at first."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.layer.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.zeros(2, layer.in_features))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.lora_a.T @ self.lora_b.T


class Adapted(Net):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.up = LowRank(block.up)
        deterministic(self)
        for block in self.blocks:
            nn.init.zeros_(block.up.lora_b)


CASES("lora_zero_b", source="microsoft/LoRA loralib/layers.py: nn.init.zeros_(self.lora_B)", model=Adapted)


class FusedPart(Net):
    """Two linear layers whose weights are two halves of one parameter, split in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Parameter(torch.zeros(16, 8))
        deterministic(self)

    def hidden(self, x: Tensor) -> Tensor:
        first, second = self.joint.chunk(2)
        return torch.tanh(super().hidden(x) @ first.T) * torch.sigmoid(x.sum(1, keepdim=True)) @ second


CASES("split_parameter", source="pytorch/pytorch torch/nn/functional.py: in_proj_weight.chunk(3)", model=FusedPart)


class SetAttribute(Net):
    """A module whose __setattr__ stores a parameter under another name."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__("kept_" + name if isinstance(value, nn.Parameter) else name, value)

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((3,), 1.25))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.kept_gain


CASES("own_setattr", source="pyro-ppl/pyro pyro/nn/module.py: PyroModule.__setattr__", model=SetAttribute)


class ReplacedBlock(Net):
    """A layer that is swapped after the optimizer's author has seen its names."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2] = Block()
        self.add_module("head", nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)))
        deterministic(self)


CASES(
    "replaced_modules",
    source="pytorch/tutorials finetuning_torchvision_models: model.fc = nn.Linear(…)",
    model=ReplacedBlock,
)


def _assigned_after() -> nn.Module:
    """What a model function does after the constructor: attributes and a hook on a parameter that was replaced."""
    model = Net()
    model.head.bias = nn.Parameter(torch.full((3,), 0.25))
    model.head.bias.register_hook(lambda gradient: gradient * 0.5)
    return model


CASES(
    "hook_on_replaced",
    source="facebookresearch/DiT models.py: initialize_weights replaces values",
    model=_assigned_after,
)


class RemovedHook(Net):
    """A hook that was removed must stay away."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight.register_hook(lambda gradient: gradient * 0).remove()
        self.head.weight.register_hook(lambda gradient: gradient * 2)
        self.head.weight.register_hook(lambda gradient: gradient + gradient)


CASES("several_hooks", source="pytorch/pytorch test/test_autograd.py: hooks run in order", model=RemovedHook)


class CountingHook(Net):
    """A hook that changes with every call: the gradient of a first call is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.head.weight.register_hook(self.drop_first)

    def drop_first(self, gradient: Tensor) -> Tensor:
        self.calls += 1
        return gradient * 0 if self.calls == 1 else gradient


CASES(
    "counting_hook",
    source="facebookresearch/dino main_dino.py: cancel_gradients_last_layer in the first epoch",
    model=CountingHook,
    refused=dict.fromkeys(["accumulation", "replicate", "shard", "tensor", "pipeline"], "hook|calls"),
)


class NonlinearHook(Net):
    """A hook that normalizes the gradient: the sum of two normalized parts is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight.register_hook(lambda gradient: gradient / (gradient.norm() + 1))


CASES(
    "normalizing_hook",
    source="lucidrains gradient normalization: register_hook(lambda g: g / g.norm())",
    model=NonlinearHook,
    refused=dict.fromkeys(["accumulation", "replicate", "shard", "tensor", "pipeline"], "hook"),
)

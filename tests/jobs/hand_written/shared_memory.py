"""Tensors that share memory, and parameters and buffers that forward changes."""

import copy

import torch
import torch.nn.functional as F
from common import RATE, Cases, Language, Net, Sequences, deterministic, token_mean, token_sum
from torch import Tensor, nn
from torch.nn.utils import prune

import onecurve as oc

CASES = Cases()
TEXT = {"data": Sequences, "loss": token_sum, "mean_loss": token_mean}
SHARED = ["accumulation", "replicate", "shard", "tensor", "pipeline"]


def job(case: str) -> oc.Job:
    return CASES[case].job()


def shares(name: str, source: str, model: object, pattern: str, **fields: object) -> None:
    """A case of shared memory: equal, or refused by the name of a tensor."""
    CASES(name, source=source, model=model, built_in_double=True, refused=dict.fromkeys(SHARED, pattern), **fields)


class TiedByData(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].up.weight.data = self.blocks[0].up.weight.data


shares(
    "tied_by_data",
    "salesforce/awd-lstm-lm model.py and fairseq: weight.data = other.weight.data",
    TiedByData,
    "up.weight",
)


class ViewAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = self.embed.weight.data[:, 0]

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) + self.first


shares(
    "attribute_is_view",
    "pytorch/pytorch nn/modules/rnn.py: _flat_weights, views of one parameter",
    ViewAttribute,
    "first|embed",
)


class SharedBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("reference", self.head.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.25 * F.linear(self.hidden(x), self.reference)


shares(
    "buffer_shares_parameter",
    "lucidrains/byol-pytorch without the deepcopy: a detached view as the target",
    SharedBuffer,
    "reference|head",
)


class FlatWeights(nn.Module):
    """All weights are views of one flat parameter, made in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(6 * 8 + 8 * 3))
        deterministic(self)
        self.first, self.second = self.flat.data[:48].view(8, 6), self.flat.data[48:].view(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.flat[:48].view(8, 6), self.flat[48:].view(3, 8)
        return F.linear(torch.tanh(F.linear(x, first)), second) + F.linear(F.linear(x, self.first), self.second)


shares(
    "flat_parameter",
    "NVIDIA/apex distributed_fused_lamb: one flat buffer with views",
    FlatWeights,
    "flat|first|block|cannot|nothing",
)


class TwoBuffers(Net):
    """Two buffers with the same memory: one is written, the other is read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("written", torch.ones(3))
        self.register_buffer("seen", self.written.view(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.written.mul_(0.5)
        return super().forward(x) * self.seen


CASES(
    "two_names_of_a_buffer",
    source="pytorch/pytorch test/test_nn.py: shared buffers",
    model=TwoBuffers,
    built_in_double=True,
    parts="rounds",
    refused=dict.fromkeys(SHARED, "written|seen"),
)


def pruned() -> nn.Module:
    model = Net()
    prune.custom_from_mask(model.embed, "weight", (torch.arange(48).reshape(8, 6) % 3 != 0).float())
    return model


CASES("pruned", source="pytorch/tutorials intermediate_source/pruning_tutorial.py", model=pruned)


class MomentumEncoder(nn.Module):
    """BYOL: forward moves the second encoder toward the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.online = Net()
        self.target = copy.deepcopy(self.online)
        self.target.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for online, target in zip(self.online.parameters(), self.target.parameters(), strict=True):
                    target.mul_(0.875).add_(online, alpha=0.125)
        return self.online(x) - 0.5 * self.target(x)


CASES(
    "momentum_encoder",
    source="facebookresearch/moco moco/builder.py: _momentum_update_key_encoder",
    model=MomentumEncoder,
    refused=dict.fromkeys(SHARED, "target|online|block"),
)


class MomentumByData(MomentumEncoder):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            for online, target in zip(self.online.parameters(), self.target.parameters(), strict=True):
                target.data = target.data * 0.875 + online.data * 0.125
        return self.online(x) - 0.5 * self.target(x)


CASES(
    "momentum_by_data",
    source="facebookresearch/moco moco/builder.py: param_k.data = param_k.data * m + …",
    model=MomentumByData,
    refused=dict.fromkeys(["mb", *SHARED], "target|online|block|data"),
)


class MomentumOfState(MomentumEncoder):
    """Loads the average as a state dict."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            online, target = self.online.state_dict(), self.target.state_dict()
            self.target.load_state_dict({name: 0.875 * target[name] + 0.125 * online[name] for name in target})
        return self.online(x) - 0.5 * self.target(x)


CASES(
    "momentum_by_state_dict",
    source="lucidrains/ema-pytorch ema_pytorch.py: copies of a model",
    model=MomentumOfState,
    refused=dict.fromkeys(["mb", *SHARED], "target|online|block|state"),
)


class Clamped(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.clamp_(-0.25, 0.25)
        return super().forward(x)


CASES(
    "weights_clamped_in_forward",
    source="martinarjovsky/WassersteinGAN main.py: p.data.clamp_",
    model=Clamped,
    refused=dict.fromkeys(SHARED, "embed|head|block|parameter"),
)


class Normalized(Net):
    """Normalizes the prototypes before they are used."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.head.weight.copy_(F.normalize(self.head.weight.data.clone(), dim=1))
        return super().forward(x)


CASES(
    "prototypes_normalized",
    source="facebookresearch/swav main_swav.py: w = F.normalize(w); prototypes.weight.copy_(w)",
    model=Normalized,
    refused=dict.fromkeys(SHARED, "head|block|parameter"),
)


class MaxNorm(Language):
    def __init__(self, max_norm: float = 0.5) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, 8, max_norm=max_norm)
        self.head = nn.Linear(8, 97)
        deterministic(self)


class ManyTokens(Sequences):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = (torch.arange(7) * (index + 3) + index * 14) % 97
        return tokens[:-1], tokens[1:]


MAX_NORM = {**TEXT, "data": ManyTokens, "refused": dict.fromkeys(SHARED, "max_norm|embed")}
CASES("max_norm", source="pytorch/pytorch nn/modules/sparse.py: Embedding(max_norm=)", model=MaxNorm, **MAX_NORM)
CASES(
    "max_norm_late",
    source="pytorch/pytorch nn/modules/sparse.py: rows that reach the norm later",
    **MAX_NORM,
    steps=8,
    model=lambda: MaxNorm(0.6875),
    optimizer=oc.SGD(lr=1.5),
    torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.5),
)


class Queue(Net):
    """A queue of former outputs in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = torch.zeros(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.training:
            self.queue = torch.cat([self.queue.to(output)[1:], output.detach().mean(0, keepdim=True)])
        return output - 0.5 * self.queue.to(output).mean(0)


class QueueBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.training:
            self.queue = torch.cat([self.queue[1:], output.detach().mean(0, keepdim=True)])
        return output - 0.5 * self.queue.mean(0)


class QueueInPlace(Net):
    """As MoCo writes it: a pointer, and a slice that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(24, 3))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.training:
            begin = int(self.pointer)
            self.queue[begin : begin + len(x)] = output.detach()
            self.pointer[0] = (begin + len(x)) % 24
        return output - 0.5 * self.queue.mean(0)


OF_SAMPLES = {"refused": {"": "queue|pointer|attribute|other samples"}}
CASES("queue_attribute", source="facebookresearch/swav main_swav.py: queue of embeddings", model=Queue, **OF_SAMPLES)
CASES(
    "queue_buffer",
    source="facebookresearch/moco moco/builder.py: _dequeue_and_enqueue",
    model=QueueBuffer,
    **OF_SAMPLES,
)
CASES(
    "queue_in_place",
    source="facebookresearch/moco moco/builder.py: self.queue[:, ptr:ptr + batch_size] = keys.T",
    model=QueueInPlace,
    **OF_SAMPLES,
)


class Codebook(Net):
    """VQ-VAE: the codes are moving averages of what they encode."""

    def __init__(self) -> None:
        super().__init__()
        codes = torch.sin(torch.arange(40.0)).reshape(5, 8)
        self.register_buffer("codes", codes)
        self.register_buffer("sums", codes.clone())
        self.register_buffer("counts", torch.ones(5))

    def hidden(self, x: Tensor) -> Tensor:
        hidden = super().hidden(x)
        chosen = F.one_hot(torch.cdist(hidden, self.codes).argmin(1), 5).to(hidden.dtype)
        quantized = chosen @ self.codes
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.5).add_(chosen.sum(0), alpha=0.5)
                self.sums.mul_(0.5).add_(chosen.T @ hidden, alpha=0.5)
                self.codes.copy_(self.sums / (self.counts[:, None] + 2**-10))
        return hidden + (quantized - hidden).detach() + 0.25 * hidden


CASES(
    "codebook_average",
    source="lucidrains/vector-quantize-pytorch vector_quantize_pytorch.py: ema_inplace",
    model=Codebook,
    refused=dict.fromkeys(SHARED, "codes|counts|sums"),
)


class WeightCache(Net):
    """A number that is computed once from the first weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = None

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is None:
            self.norm = self.embed.weight.detach().norm()
        return super().forward(x) / self.norm


CASES(
    "cache_of_first_weights",
    source="NVlabs/stylegan3: constants from the initial weights",
    model=WeightCache,
    refused=dict.fromkeys(SHARED, "norm|embed|attribute"),
)


class LateScale(Net):
    """Data-dependent initialization: the first batch sets a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool))

    def hidden(self, x: Tensor) -> Tensor:
        hidden = super().hidden(x)
        if not self.initialized:
            with torch.no_grad():
                self.scale.copy_(1 / (hidden.std(0) + 1))
                self.initialized.fill_(True)
        return hidden * self.scale


CASES(
    "data_dependent_initialization",
    source="rosinality/glow-pytorch model.py: ActNorm.initialize",
    model=LateScale,
    refused=dict.fromkeys(["mb", *SHARED], "scale|initialized"),
)


class MadeInForward(Net):
    def __init__(self) -> None:
        super().__init__()
        self.extra = None

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.extra is None:
            self.extra = deterministic(nn.Linear(3, 3)).to(output)
        return output + self.extra(output)


CASES(
    "parameters_made_in_forward",
    source="a pattern before nn.LazyLinear: lucidrains, pyro: build in the first forward",
    model=MadeInForward,
    refused={"": "extra|forward"},
)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LazyLinear(8), nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


CASES(
    "lazy_linear",
    source="pytorch/pytorch nn/modules/linear.py: LazyLinear",
    model=Lazy,
    refused={"": "[Ll]azy|uninitialized"},
    torch_optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=RATE),
)


class PerBatch(torch.autograd.Function):
    """A gradient that is scaled by the size of the batch: a wrong normalization, which a split shows."""

    @staticmethod
    def forward(_context: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_context: object, gradient: Tensor) -> Tensor:
        return gradient * gradient.shape[0]


class ZeroHead(Net):
    """The fault shows only after the first update: before it, the head is zero."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(PerBatch.apply(self.hidden(x)))


class NotZeroHead(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(PerBatch.apply(self.hidden(x)))


SPLIT = {"refused": dict.fromkeys(["accumulation", "replicate", "shard", "pipeline"], "differs|other samples|batch")}
CASES("zero_head", source="google-research/big_transfer bit_pytorch/models.py: zero_head", model=ZeroHead, **SPLIT)
CASES("per_batch_gradient", source="gradient normalization in custom autograd functions", model=NotZeroHead, **SPLIT)

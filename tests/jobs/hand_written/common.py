"""What the hand-written cases share: a job with the loop that a person would write for it, small data, a small model.

A case names a `Job` and trains the same model a second time in a loop of plain PyTorch: one device, float64, the whole
batch at once. Of onecurve, the loop uses only what is documented: the order of the samples and the random seeds.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

import onecurve as oc
from onecurve.data.order import Order, round_bounds, share_bounds
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.rng import seed_all

Weights = nn.Module | dict[str, Tensor]

RATE = 0.0625
"""Learning rate of the cases that use plain SGD, whose update shows each factor of a gradient."""


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a hand-written loop, if a case names no other one."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def mean_cross_entropy(output: Any, target: Any) -> Tensor:
    return F.cross_entropy(output, target)


def deterministic(module: nn.Module, scale: float = 0.3) -> nn.Module:
    """Give all parameters values that come from no random generator and are exact in float32."""
    with torch.no_grad():
        for number, (name, parameter) in enumerate(module.named_parameters()):
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                continue
            ramp = torch.arange(parameter.numel(), dtype=torch.float64)
            values = torch.sin(ramp * (0.37 + 0.05 * number) + number) * scale
            if "norm" in name and name.endswith("weight"):
                values += 1.0
            if parameter.is_complex():
                values = torch.complex(values.float(), (torch.cos(ramp * 0.23 + number) * scale).float())
            else:
                values = values.float()
            parameter.copy_(values.reshape(parameter.shape).to(parameter.dtype))
    return module


class Vectors(torch.utils.data.Dataset):
    """Samples ([6], class of three), the same at each start."""

    def __init__(self, size: int = 64) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def features(self, index: int) -> Tensor:
        return torch.sin(torch.arange(6, dtype=torch.float64) * (0.7 + 0.1 * index) + index).float()

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.features(index), index * 7 % 3


class Pairs(Vectors):
    """Samples ([6], [2]) for a regression."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.features(index), torch.cos(torch.tensor([float(index), 2.0 * index]))


class Sequences(torch.utils.data.Dataset):
    """Samples (tokens [6], next tokens [6]) from a vocabulary; with `padding`, up to three targets are -100."""

    def __init__(self, size: int = 64, vocabulary: int = 12, padding: bool = True) -> None:
        self.size, self.vocabulary, self.padding = size, vocabulary, padding

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        tokens = (torch.arange(7) * (index % 5 + 3) + index * index) % self.vocabulary
        target = tokens[1:].clone()
        if self.padding:
            target[6 - index % 4 :] = -100
        return tokens[:-1], target


class Images(torch.utils.data.Dataset):
    """Samples ([1, 6, 6], class of three)."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        ramp = torch.arange(36, dtype=torch.float64).reshape(1, 6, 6)
        return torch.sin(ramp * 0.21 * (index % 8 + 1) + index).float(), index * 7 % 3


class Block(nn.Module):
    """A residual block, which plans split along `tensor` and `pipeline`."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """A classifier with four equal blocks, so that each of the plans is possible."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 3)
        deterministic(self)

    def hidden(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Any:
        return self.head(self.hidden(x))


class Language(nn.Module):
    """A language model with four equal blocks; each position sees the sum of the earlier ones."""

    def __init__(self, vocabulary: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, vocabulary)
        deterministic(self)

    def hidden(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).cumsum(1)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.hidden(tokens))


def token_sum(output: Tensor, target: Tensor) -> oc.Weighted:
    """The sum over all tokens that are not ignored, with their number."""
    total = F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
    return oc.Weighted(total, (target != -100).sum())


def token_mean(output: Tensor, target: Tensor) -> Tensor:
    """The mean over all tokens that are not ignored, as most scripts write it."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A legal job, and the loop that a person would write for it."""

    name: str
    source: str
    """Where the idiom comes from: a public repository and its file, or PyTorch's documentation."""
    model: Callable[[], nn.Module] = Net
    data: Callable[[], Any] = Vectors
    loss: Callable[..., Any] = oc.loss.cross_entropy
    mean_loss: Callable[[Any, Any], Tensor] = mean_cross_entropy
    """The loss of the whole batch in the hand-written loop: one scalar."""
    optimizer: Any = field(default_factory=lambda: oc.SGD(lr=RATE))
    torch_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    batch: int = 8
    steps: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the Job; the loop follows `collate`, `clip` and a `schedule` that is a function."""
    built_in_double: bool = False
    """True if the loop builds its model in float64, because a conversion would part tensors that share memory."""
    parts: Literal["batch", "rounds", "shares"] = "batch"
    """What a forward of the loop computes: the whole batch; each of the plan's rounds, if forward has a state that
    advances; or each rank's share of a round, under its documented seed."""
    torch_model: Callable[[], nn.Module] | None = None
    """The model of the loop, if plain PyTorch needs another one on one device."""
    loop: Callable[[], Weights] | None = None
    """A loop of its own, which returns the trained weights; None for the usual one."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Plans that may refuse the job, by the first letters of their name, and what the message says (a pattern)."""
    refused_after: int = 0
    """Steps that such a plan may have trained before, because nothing was wrong until then."""
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """Plans, by the first letters of their name, whose loop is not written here, and why."""

    def job(self) -> oc.Job:
        fields: dict[str, Any] = {"steps": self.steps, "save": None, "workers": 0, **self.options}
        return oc.Job(
            model=self.model,
            data=self.data,
            loss=self.loss,
            optimizer=self.optimizer,
            global_batch=self.batch,
            **fields,
        )

    def trained_by_hand(self, plan: Plan) -> Weights:
        """The weights after a hand-written loop."""
        if self.loop is not None:
            return self.loop()
        model = in_double(self.torch_model or self.model, self.built_in_double)
        optimizer = self.torch_optimizer(model)
        rates = [group["lr"] for group in optimizer.param_groups]
        model.train()
        for step in range(self.steps):
            if schedule := self.options.get("schedule"):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * schedule(step, self.steps)
            optimizer.zero_grad()
            for share, inputs, target in self._shares(step, plan):
                loss = self.mean_loss(call(model, inputs), target)
                (loss * share / self.batch).backward()
            if clip := self.options.get("clip"):
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        return model

    def _shares(self, step: int, plan: Plan) -> Iterator[tuple[int, Any, Any]]:
        """The micro-batches of a step with their sizes, each under its seed."""
        data, collate = self.data(), self.options.get("collate") or default_collate
        position = step * self.batch
        parts = [(position, position + self.batch, 0, 0)]
        if self.parts == "rounds":
            parts = [(*round_bounds(position, self.batch, plan.rounds, n), n, 0) for n in range(plan.rounds)]
        elif self.parts == "shares":
            parts = [
                (*share_bounds(plan, rank, position, number), number, rank)
                for number in range(plan.rounds)
                for rank in range(plan.mesh.data)
            ]
        for begin, end, number, rank in parts:
            seed_all(0)
            samples = [data[sample.offset] for sample in Order([len(data)], seed=0).samples(begin, end)]
            inputs, target = doubled(collate(samples))
            seed_all(mix(0, step, number, rank, 2))
            yield end - begin, inputs, target


DIFFERS = "does not compute the same as one device"
FAILS = "does not run under it, although one device computes its steps"
NO_TRACE = "depends on the values of the data|reads values of its tensors|has no memory|does not require grad"
WHOLE = "derived from nn.Parameter|may need full parameters"
REFUSED_BY_AXIS = [
    ("spt", WHOLE, ["parameter_subclass", "subclass_for_optimizer", "subclass_with_state"]),
    ("st", WHOLE, ["lookahead", "sam_with_closure", "decays_its_own_rate"]),
    ("tp", NO_TRACE, ["expert_counts", "dino_center", "batch_norm_cumulative"]),
    ("p", NO_TRACE, ["lru_cache_in_forward", "class_level_cache", "packed_gru", "packed_lstm"]),
    ("t", NO_TRACE, ["inner_gradient"]),
    ("ap", DIFFERS, ["annealed_loss", "annealed_by_global"]),
    ("p", DIFFERS, ["module_backward_hook", "grown_position_cache", "layer_decay", "l2_of_global_model"]),
    ("st", DIFFERS, ["list_with_parameter"]),
    ("t", DIFFERS, ["batch_norm_called_twice"]),
    ("s", FAILS, ["weight_by_property", "own_setattr", "penalty_per_sample"]),
    ("st", f"{FAILS}|{DIFFERS}", ["l2_of_global_model"]),
    ("tp", FAILS, ["auxiliary_attribute"]),
    ("t", "nothing in this model can be split", ["lora_zero_b"]),
    ("p", "cannot be split into pipeline stages", ["sparse_lookup"]),
    ("p", "needs two passes", ["whole_dice"]),
]
"""The first letters of plans, what their messages say, and the cases that they cannot carry."""


class Cases(dict[str, Case]):
    """The cases of one file, by name."""

    def __call__(self, name: str, **fields: Any) -> None:
        assert name not in self, f"two cases have the name {name}"
        refused = dict(fields.pop("refused", {}))
        for letters, pattern, names in REFUSED_BY_AXIS:
            for letter in letters if name in names else "":
                refused[letter] = f"{refused[letter]}|{pattern}" if letter in refused else pattern
        self[name] = Case(name=name, refused=refused, **fields)


def call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def doubled(tree: Any) -> Any:
    """Convert all floating-point tensors to float64."""
    return pytree.tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, tree)


def in_double(build: Callable[[], nn.Module], directly: bool = False) -> nn.Module:
    """Build a model in float64: converted after its constructor, or `directly`."""
    if not directly:
        return build().double()
    with default_dtype(torch.float64):
        return build()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def whole_batches(data: Any, batch: int, steps: int, collate: Any = default_collate) -> Iterator[tuple[Any, Any]]:
    """The batches of a training in float64, in the job's order."""
    order = Order([len(data)], seed=0)
    for step in range(steps):
        samples = order.samples(step * batch, (step + 1) * batch)
        yield doubled(collate([data[sample.offset] for sample in samples]))

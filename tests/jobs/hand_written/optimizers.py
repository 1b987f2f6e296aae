"""What people write as an optimizer function: groups of all kinds, closures, wrappers; averages; late parameters."""

import math

import torch
import torch.nn.functional as F
from common import RATE, Cases, Net, adamw, deterministic, in_double, whole_batches
from torch import Tensor, nn

import onecurve as oc

CASES = Cases()
ELSEWHERE = ["accumulation", "replicate", "shard", "tensor", "pipeline"]


def job(case: str) -> oc.Job:
    return CASES[case].job()


def own(name: str, source: str, function: object, **fields: object) -> None:
    """A case whose optimizer function is the same in the job and in the loop."""
    CASES(
        name,
        source=source,
        optimizer=function,
        torch_optimizer=lambda model: function(model.named_parameters()),
        **fields,
    )


for kind, options in {
    "Adagrad": {"lr": 0.05},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.05},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
    "Adadelta": {"lr": 0.5},
    "Adamax": {"lr": 0.01},
    "Adam": {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True},
    "Adafactor": {"lr": 0.01},
}.items():
    own(
        kind.lower(),
        f"pytorch/pytorch torch/optim/{kind.lower()}.py",
        lambda named, kind=kind, options=options: getattr(torch.optim, kind)([p for _, p in named], **options),
        refused={"shard": "elementwise|full|Adafactor", "tensor": "elementwise|full|Adafactor"}
        if kind == "Adafactor"
        else {},
    )

own(
    "sgd_dampened",
    "pytorch/pytorch torch/optim/sgd.py: dampening",
    lambda named: torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9, dampening=0.25),
)
own(
    "sgd_maximize",
    "pytorch/pytorch torch/optim/sgd.py: maximize",
    lambda named: torch.optim.SGD([p for _, p in named], lr=0.01, maximize=True),
)
own(
    "lbfgs",
    "pytorch/examples time_sequence_prediction/train.py: optim.LBFGS with a closure",
    lambda named: torch.optim.LBFGS([p for _, p in named], lr=0.1),
    refused={"": "LBFGS|closure"},
)


def by_dimension(named: object) -> torch.optim.Optimizer:
    parameters = [p for _, p in named]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.5},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


own("decay_by_dimension", "karpathy/nanoGPT model.py: configure_optimizers, p.dim() >= 2", by_dimension)


def layer_decay(named: object) -> torch.optim.Optimizer:
    """A smaller rate for each earlier parameter, as BEiT and MAE fine-tune."""
    groups = [{"params": [p], "lr": 0.5 * 0.75**place} for place, (_, p) in enumerate(reversed(list(named)))]
    return torch.optim.SGD(groups, lr=0.5)


own("layer_decay", "facebookresearch/mae util/lr_decay.py: param_groups_lrd", layer_decay)


def by_set_of_names(named: object) -> torch.optim.Optimizer:
    """minGPT sorts names into two sets, whose order differs from process to process."""
    parameters = dict(named)
    decay = {name for name in parameters if name.endswith("weight")}
    groups = [
        {"params": [parameters[name] for name in decay], "weight_decay": 0.5},
        {"params": [parameters[name] for name in parameters.keys() - decay], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


own("unsorted_sets_of_names", "karpathy/minGPT mingpt/model.py: decay = set(), without its sorted()", by_set_of_names)


def filtered(named: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(filter(lambda p: p.requires_grad, [p for _, p in named]), lr=0.01)


class HalfFrozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].requires_grad_(False)


own(
    "filter_requires_grad",
    "pytorch/fairseq and many: filter(lambda p: p.requires_grad, model.parameters())",
    filtered,
    model=HalfFrozen,
)
own(
    "head_only",
    "facebookresearch/moco main_lincls.py: only fc.weight and fc.bias are in the optimizer",
    lambda named: torch.optim.SGD([p for name, p in named if name.startswith("head")], lr=0.5),
    refused={"": "leaves out 18 of 20 parameters, first 'embed.weight'"},
)

MODELS: list[nn.Module] = []


class Known(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        deterministic(self)
        MODELS.append(self)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(super().hidden(x))

    def no_weight_decay(self) -> set[str]:
        return {"embed.weight", "head.weight"}


def by_module_type(named: object) -> torch.optim.Optimizer:
    """The types of modules are looked up in a model that a global names."""
    norms = {id(p) for m in MODELS[-1].modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    parameters = [p for _, p in named]
    groups = [
        {"params": [p for p in parameters if id(p) not in norms], "weight_decay": 0.5},
        {"params": [p for p in parameters if id(p) in norms], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01)


own(
    "groups_by_module_type",
    "pytorch/vision torchvision/ops/_utils.py: split_normalization_params(model)",
    by_module_type,
    model=Known,
    refused={"": "optimizer"},
)


def by_model_method(named: object) -> torch.optim.Optimizer:
    skipped = MODELS[-1].no_weight_decay()
    groups = [{"params": [p], "weight_decay": 0.0 if name in skipped or p.ndim < 2 else 0.5} for name, p in named]
    return torch.optim.AdamW(groups, lr=0.01)


own(
    "no_weight_decay_method",
    "huggingface/pytorch-image-models timm/models/vision_transformer.py: no_weight_decay()",
    by_model_method,
    model=Known,
)


def by_global_model(_named: object) -> torch.optim.Optimizer:
    """Ignores what it is given, and updates the parameters of a model that a global names."""
    return torch.optim.SGD(MODELS[-1].parameters(), lr=0.5)


own(
    "parameters_of_global_model",
    "pytorch/examples: optim.SGD(model.parameters()) of a global model",
    by_global_model,
    model=Known,
    refused={"": "optimizer"},
)


class Centralized(torch.optim.SGD):
    """Subtracts each gradient's mean over all dimensions but the first."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.ndim > 1:
                    p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.grad.ndim)), keepdim=True))
        return super().step(closure)


WHOLE_MATRICES = dict.fromkeys(["shard", "tensor"], "element|full|optimizer")
own(
    "gradient_centralization",
    "Yonghongwei/Gradient-Centralization SGD.py: centralized_gradient",
    lambda named: Centralized([p for _, p in named], lr=0.25),
    refused=WHOLE_MATRICES,
)


class Lookahead(torch.optim.Optimizer):
    """Every second step goes half of the way back to slow weights."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.steps_done = base, 0
        super().__init__(base.param_groups, {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("slow", p.clone())
        self.base.param_groups = self.param_groups
        self.base.step(closure)
        self.steps_done += 1
        if self.steps_done % 2 == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    slow = self.state[p]["slow"]
                    p.copy_(slow.lerp_(p, 0.5))


own(
    "lookahead",
    "michaelrzhang/lookahead lookahead_pytorch.py",
    lambda named: Lookahead(torch.optim.SGD([p for _, p in named], lr=0.25)),
)


class SharpnessAware(torch.optim.SGD):
    """Needs two gradients for each step, so it asks for a closure."""

    def step(self, closure: object = None) -> None:
        assert closure is not None, "SAM requires closure, which is not provided"
        closure()
        super().step()


own(
    "sam_with_closure",
    "davda54/sam sam.py: Sharpness Aware Minimization requires closure, but it was not provided",
    lambda named: SharpnessAware([p for _, p in named], lr=0.25),
    refused={"": "closure"},
)


class SelfClipping(torch.optim.SGD):
    """Clips the gradient's norm over all parameters inside its step."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.0625)
        return super().step(closure)


own(
    "clips_in_its_step",
    "facebookresearch/detectron2 solver/build.py: FullModelGradientClippingOptimizer",
    lambda named: SelfClipping([p for _, p in named], lr=0.5),
    refused=dict.fromkeys(["shard", "tensor", "pipeline"], "element|full|optimizer"),
)


class RateByGroup(torch.optim.SGD):
    """Changes its own rate from step to step."""

    def step(self, closure: object = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.5


own(
    "decays_its_own_rate",
    "facebookresearch/fairscale and schedulers inside optimizers: group['lr'] *= decay",
    lambda named: RateByGroup([p for _, p in named], lr=0.5),
    refused={"": "lr|rate"},
)


def with_step_hook(named: object) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([p for _, p in named], lr=0.5)

    @torch.no_grad()
    def clamp(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.clamp_(-0.25, 0.25)

    optimizer.register_step_post_hook(clamp)
    return optimizer


own(
    "step_post_hook",
    "martinarjovsky/WassersteinGAN main.py: p.data.clamp_ after each step, as an optimizer hook",
    with_step_hook,
)


def with_scheduler(named: object) -> torch.optim.Optimizer:
    """A scheduler that the function makes changes the rates of the first step (a warm-up)."""
    optimizer = torch.optim.SGD([p for _, p in named], lr=0.5)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.25 * (step + 1))
    return optimizer


own(
    "scheduler_made_inside",
    "huggingface/transformers examples: LambdaLR in the function that makes the optimizer",
    with_scheduler,
    refused={"": "schedul|lr|rate"},
)


def restarts(step: int, _steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * (step % 3) / 3))


CASES(
    "restarts",
    source="pytorch/pytorch CosineAnnealingWarmRestarts as a function",
    steps=6,
    options={"schedule": restarts},
)
CASES("clipped", source="karpathy/nanoGPT train.py: clip_grad_norm_", options={"clip": 0.03125})
CASES(
    "clipped_small_adam",
    source="huggingface/transformers trainer.py: max_grad_norm",
    optimizer=oc.AdamW(lr=0.01),
    torch_optimizer=adamw,
    options={"clip": 0.03125},
)


def _three_groups(model: nn.Module) -> torch.optim.Optimizer:
    named = dict(model.named_parameters())
    first = [p for n, p in named.items() if n in ("embed.weight", "head.weight")]
    biases = [p for n, p in named.items() if n.endswith("bias")]
    others = [p for n, p in named.items() if n.startswith("blocks") and n.endswith("weight")]
    return torch.optim.AdamW(
        [
            {"params": others},
            {"params": first, "lr": 0.03, "weight_decay": 0.25},
            {"params": biases, "weight_decay": 0.0, "betas": (0.5, 0.9)},
        ],
        lr=0.01,
    )


CASES(
    "three_groups",
    source="onecurve docs/job.md: groups",
    torch_optimizer=_three_groups,
    optimizer=oc.AdamW(
        lr=0.01,
        groups={
            "embed.weight|head.weight": {"lr": 0.03, "weight_decay": 0.25},
            "*.bias": {"weight_decay": 0.0, "betas": (0.5, 0.9)},
        },
    ),
)


def averaged(build: object, make: object, decay: float = 0.875, steps: int = 4) -> object:
    """A loop that averages the weights after each step."""

    def loop() -> dict[str, Tensor]:
        model = in_double(build)
        optimizer, average = make(model), None
        for inputs, target in whole_batches(CASES["sgd_dampened"].data(), 8, steps):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), target).backward()
            optimizer.step()
            now = {name: value.detach().clone() for name, value in model.state_dict().items()}
            average = (
                now
                if average is None
                else {
                    name: decay * average[name] + (1 - decay) * value if value.is_floating_point() else value
                    for name, value in now.items()
                }
            )
        return average

    return loop


class LateUse(Net):
    """A layer that is used from the third forward on."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 3)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.training:
            self.forwards += 1
        return output + self.extra(output) if self.forwards > 2 else output


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.875)


PROGRESSIVE = "tkarras/progressive_growing_of_gans and its PyTorch ports: layers that are faded in during training"
COUNTED = dict.fromkeys(["accumulation", "pipeline"], "forwards|extra|block")
CASES(
    "average",
    source="huggingface/diffusers training_utils.py: EMAModel",
    options={"ema": 0.875},
    optimizer=oc.AdamW(lr=0.01),
    torch_optimizer=adamw,
    loop=averaged(Net, adamw),
)
CASES(
    "late_parameter",
    source=PROGRESSIVE,
    model=LateUse,
    parts="rounds",
    refused=COUNTED,
    optimizer=oc.AdamW(lr=0.01),
    torch_optimizer=adamw,
)
CASES(
    "late_parameter_momentum",
    source=PROGRESSIVE,
    model=LateUse,
    parts="rounds",
    refused=COUNTED,
    optimizer=oc.SGD(lr=0.125, momentum=0.875),
    torch_optimizer=momentum,
)
CASES(
    "late_parameter_average",
    source=PROGRESSIVE,
    model=LateUse,
    refused=COUNTED,
    options={"ema": 0.875},
    optimizer=oc.AdamW(lr=0.01),
    torch_optimizer=adamw,
    loop=averaged(LateUse, adamw),
    not_compared=dict.fromkeys(["accumulation", "pipeline"], "the loop is written for one round per step"),
)
CASES(
    "late_parameter_average_momentum",
    source=PROGRESSIVE,
    model=LateUse,
    refused=COUNTED,
    options={"ema": 0.875},
    optimizer=oc.SGD(lr=0.125, momentum=0.875),
    torch_optimizer=momentum,
    loop=averaged(LateUse, momentum),
    not_compared=dict.fromkeys(["accumulation", "pipeline"], "the loop is written for one round per step"),
)


class Unfreezing(Net):
    """Trains the embedding from the third forward on."""

    def __init__(self) -> None:
        super().__init__()
        self.embed.requires_grad_(False)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
        self.embed.requires_grad_(bool(self.forwards > 2))
        return super().forward(x)


CASES(
    "gradual_unfreezing",
    source="fastai/fastai fastai/callback/schedule.py: gradual unfreezing of ULMFiT",
    model=Unfreezing,
    torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE),
    refused={"": "embed|requires_grad"},
    refused_after=2,
)


class Freezing(Net):
    """Freezes the embedding from the third forward on, as curricula and FixRes fine-tuning do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
        self.embed.requires_grad_(bool(self.forwards < 3))
        return super().forward(x)


CASES(
    "freezing_later",
    source="facebookresearch/dino main_dino.py: freeze_last_layer by epoch",
    model=Freezing,
    refused={"": "embed|requires_grad"},
    refused_after=2,
)


class TrainFreezes(Net):
    """`train()` freezes and unfreezes: a backbone with frozen stages."""

    def train(self, mode: bool = True) -> "TrainFreezes":
        super().train(mode)
        self.embed.requires_grad_(False)
        return self


CASES(
    "frozen_by_train",
    source="open-mmlab/mmdetection mmdet/models/backbones/resnet.py: train() → _freeze_stages()",
    model=TrainFreezes,
    torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE),
    refused={"": "embed|requires_grad"},
    refused_after=2,
)


class ClearsGradient(Net):
    """Sets `.grad` of a parameter in forward: the gradient of the step before is used as an input."""

    def forward(self, x: Tensor) -> Tensor:
        previous = self.embed.weight.grad
        return super().forward(x if previous is None else x * (1 + previous.abs().mean()))


CASES(
    "reads_gradient_in_forward",
    source="lucidrains: modules that read p.grad of the last step",
    model=ClearsGradient,
    refused={"": "grad"},
)

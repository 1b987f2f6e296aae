"""Python state, caches, hooks, patches and randomness in forward; branches that few batches take."""

import copy
import functools
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from common import Block, Cases, Language, Net, Sequences, Vectors, deterministic, token_mean, token_sum
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.order import Order

CASES = Cases()
SHARED = ["accumulation", "replicate", "shard", "tensor", "pipeline"]
TEXT = {"data": Sequences, "loss": token_sum, "mean_loss": token_mean}
ORDER = [sample.offset for sample in Order([64], seed=0).samples(0, 64)]


def job(case: str) -> oc.Job:
    return CASES[case].job()


def stateful(name: str, source: str, model: object, pattern: str, **fields: object) -> None:
    """A case whose forward has a state: equal, or refused by its name where a batch is split."""
    CASES(name, source=source, model=model, refused=dict.fromkeys(SHARED, pattern), **fields)


class Counter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return super().forward(x) * min(1.0, self.count / 4)


stateful("python_counter", "AntixK/PyTorch-VAE models/beta_vae.py: num_iter", Counter, "count|state|attribute")


class CounterOfAll(Net):
    """Counts forwards in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.history = {"forwards": [0]}

    def forward(self, x: Tensor) -> Tensor:
        self.history["forwards"][0] += 1
        return super().forward(x) * min(1.0, self.history["forwards"][0] / 8)


stateful(
    "counter_in_nested_list",
    "a step counter in a dict of lists: allennlp training callbacks",
    CounterOfAll,
    "history|state|attribute",
)


class ClassCounter(Net):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            ClassCounter.count += 1
        return super().forward(x) * min(1.0, ClassCounter.count / 4)


stateful(
    "class_counter",
    "jadore801120/attention-is-all-you-need: class attributes as counters",
    ClassCounter,
    "count|state|attribute|class",
)

_steps = {"done": 0}


class GlobalCounter(Net):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            _steps["done"] += 1
        return super().forward(x) * min(1.0, _steps["done"] / 4)


stateful(
    "global_counter",
    "a global step in scripts: timbmg/Sentence-VAE train.py",
    GlobalCounter,
    "done|state|global|differs",
)


def _with_closure() -> nn.Module:
    model, calls = Net(), [0]

    def scale(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        calls[0] += 1
        return output * min(1.0, calls[0] / 4)

    model.head.register_forward_hook(scale)
    return model


stateful(
    "counter_in_closure",
    "a forward hook with a closure: captum and torchvision feature extraction",
    _with_closure,
    "hook|state|closure|differs|calls",
)


class Iterator(Net):
    """An annealing schedule as a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = iter([0.25, 0.5, 0.75] + [1.0] * 1000)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (next(self.schedule) if self.training else 1.0)


stateful(
    "schedule_as_iterator",
    "itertools in annealing: pyro-ppl examples, an iterator of temperatures",
    Iterator,
    "schedule|state|attribute|differs",
)


class CountBuffer(Net):
    """A number of forwards as a buffer, which changes the output."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
        return super().forward(x) * (self.forwards / 4).clamp(max=1).to(x.dtype)


stateful(
    "counting_buffer",
    "facebookresearch/fairseq models/wav2vec: gumbel temperature by num_updates",
    CountBuffer,
    "forwards",
    parts="rounds",
)


class SeenSamples(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return super().forward(x)


stateful("seen_samples", "pytorch/pytorch nn/modules/batchnorm.py: num_batches_tracked", SeenSamples, "seen")


class Histogram(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("histogram", torch.zeros(3, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.training:
            self.histogram += torch.bincount(output.argmax(1), minlength=3)
        return output


stateful("expert_counts", "deepseek-ai/DeepSeek-V3 inference/model.py: loads of experts", Histogram, "histogram")


class PositionCache(Language):
    """Positions that grow with the longest sequence seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.empty(0, 8), persistent=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        if len(self.positions) < tokens.shape[1]:
            grid = torch.arange(tokens.shape[1])[:, None] * torch.tensor([1.0, 0.5, 0.25, 0.125] * 2)
            self.positions = torch.sin(grid.to(self.embed.weight))
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x


CASES(
    "grown_position_cache",
    source="huggingface/transformers modeling_gptj and fairseq sinusoidal_positional_embedding.py: "
    "weights that grow on demand",
    model=PositionCache,
    **TEXT,
)


class Rotary(Language):
    def __init__(self) -> None:
        super().__init__()
        grid = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.25])
        self.register_buffer("cosine", grid.cos(), persistent=False)
        self.register_buffer("sine", grid.sin(), persistent=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        first, second, rest = super().hidden(tokens).split([2, 2, 4], -1)
        return torch.cat([first * self.cosine - second * self.sine, first * self.sine + second * self.cosine, rest], -1)


CASES(
    "rotary_not_persistent", source="EleutherAI/gpt-neox megatron/model/positional_embeddings.py", model=Rotary, **TEXT
)


@functools.lru_cache
def causal_mean(length: int) -> Tensor:
    return torch.tril(torch.ones(length, length)) / torch.arange(1, length + 1)[:, None]


class CachedMask(Language):
    def hidden(self, tokens: Tensor) -> Tensor:
        return causal_mean(4)[:, :4].to(self.embed.weight).sum() * 0.125 * super().hidden(tokens)


CASES(
    "lru_cache_in_forward",
    source="openai/whisper and lucidrains/x-transformers: lru_cache of masks",
    model=CachedMask,
    **TEXT,
)


class ClassCache(Net):
    """Constants that all instances share, made in the first forward."""

    cache: dict[int, Tensor] = {}  # noqa: RUF012 - the idiom

    def forward(self, x: Tensor) -> Tensor:
        key = x.shape[-1]
        if key not in self.cache:
            self.cache[key] = torch.linspace(0, 1, 5, device=x.device)[: key - 1].sum().to(x)
        return super().forward(x) * self.cache[key]


CASES(
    "class_level_cache",
    source="facebookresearch/detr models/position_encoding.py variants: caches of the class",
    model=ClassCache,
)


class HiddenState(nn.Module):
    """The hidden state of a batch is where the next one begins."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(12, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 12)
        self.state: Tensor | None = None
        deterministic(self)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.state is None or self.state.shape[1] != len(tokens):
            self.state = torch.zeros(1, len(tokens), 8).to(self.embed.weight)
        output, state = self.rnn(self.embed(tokens), self.state)
        self.state = state.detach()
        return self.head(output)


stateful(
    "hidden_state_between_batches",
    "pytorch/examples word_language_model/main.py: repackage_hidden",
    HiddenState,
    "state|attribute|block|cannot|nothing",
    **TEXT,
)


def _patched() -> nn.Module:
    model = Net()
    forward = model.head.forward
    model.head.forward = lambda x: forward(x) * 0.5
    return model


CASES("patched_forward", source="openai/CLIP-like fine-tuning: module.forward = types.MethodType(…)", model=_patched)


class Hooked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].register_forward_hook(lambda _module, _inputs, output: output * 0.5)
        self.blocks[2].register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 2,))


CASES("forward_hooks", source="pytorch/pytorch nn/modules/module.py: register_forward_hook", model=Hooked)


class StoredActivation(Net):
    """A hook stores an activation, which the head reads later."""

    def __init__(self) -> None:
        super().__init__()
        self.activations: dict[str, Tensor] = {}
        self.blocks[0].register_forward_hook(self.store)

    def store(self, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        self.activations["first"] = output

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x) + self.activations["first"])


CASES(
    "hook_stores_activation",
    source="facebookresearch/dino and MiDaS: activations[name] = output",
    model=StoredActivation,
    refused={"pipeline": "blocks.0|activation|stage|differs"},
)


class CopiedBlocks(Net):
    def __init__(self) -> None:
        super().__init__()
        block = Block()
        block.up.weight.register_hook(lambda gradient: gradient * 0.5)
        self.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(4))
        deterministic(self)


CASES(
    "deepcopied_blocks",
    source="pytorch/pytorch nn/modules/transformer.py: _get_clones, copy.deepcopy",
    model=CopiedBlocks,
)


class DeviceOfInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.ones(3, device=x.device, dtype=x.dtype) * 0.5
        return super().forward(x) * scale + torch.zeros(len(x), 3, device=next(self.parameters()).device)


CASES(
    "device_of_first_parameter",
    source="huggingface/transformers modeling_utils.py: next(self.parameters()).device",
    model=DeviceOfInput,
)


class InEvaluation(Net):
    """Norm and dropout stay in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)
        deterministic(self)

    def train(self, mode: bool = True) -> "InEvaluation":
        super().train(mode)
        self.norm.eval()
        self.drop.eval()
        return self

    def hidden(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(super().hidden(x)))


CASES(
    "kept_in_evaluation_mode",
    source="facebookresearch/maskrcnn-benchmark layers/batch_norm.py: frozen norms",
    model=InEvaluation,
    refused={"tensor": "batch norm|norm"},
)


class TrainingOnly(Net):
    """Mixes the samples of a batch only in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        return output / (output.std(0, keepdim=True) + 1) if self.training else output


CASES(
    "mixes_in_training_mode",
    source="facebookresearch/barlowtwins: statistics of the batch in training",
    model=TrainingOnly,
    refused={"": "other samples|differs|batch"},
)


class TimeDependent(Net):
    """Measures its own time, without effect on the result."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        begin = time.perf_counter()
        output = super().forward(x)
        self.seconds.append(time.perf_counter() - begin)
        return output


CASES("measures_its_time", source="pytorch/benchmark: timers in forward", model=TimeDependent)


class LastOutput(Net):
    """Keeps its last output for logging, without effect on the result."""

    def forward(self, x: Tensor) -> Tensor:
        self.last_output = super().forward(x)
        self.losses = {"norm": self.last_output.detach().square().mean().item()}
        return self.last_output


CASES("keeps_last_output", source="CompVis/latent-diffusion: values kept for a logger", model=LastOutput)


class InnerGradient(nn.Module):
    """MAML: each sample takes a gradient step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        deterministic(self)

    def adapted(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        (gradient,) = torch.autograd.grad((x @ weight.T).square().mean(), weight, create_graph=True)
        return x @ (weight - 0.125 * gradient).T + self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.adapted(sample) for sample in x])


NO_STAGES = {"pipeline": "cannot be split into pipeline stages|block", "tensor": "cannot|nothing in this model"}
CASES(
    "inner_gradient",
    source="dragen1860/MAML-Pytorch meta.py: torch.autograd.grad(loss, self.net.parameters())",
    model=InnerGradient,
    refused={**NO_STAGES, "shard": "autograd.grad|layer"},
)


class GradientPenalty(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            output = super().forward(x)
            (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output, gradient.square().sum(1)


CASES(
    "gradient_penalty",
    source="caogang/wgan-gp gan_toy.py: calc_gradient_penalty",
    model=GradientPenalty,
    loss=lambda o, y: F.cross_entropy(o[0], y, reduction="none") + 0.125 * o[1],
    mean_loss=lambda o, y: F.cross_entropy(o[0], y) + 0.125 * o[1].mean(),
    refused=dict.fromkeys(["shard", "tensor", "pipeline"], "."),
)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context: object, gradient: Tensor) -> tuple[Tensor, None]:
        return -context.factor * gradient, None


class Adversarial(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(Reversed.apply(self.hidden(x), 0.5))


CASES("gradient_reversal", source="fungtion/DANN functions.py: ReverseLayerF", model=Adversarial)


class TensorHook(Net):
    """A hook on an activation scales the gradient of a branch."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.25)
        return self.head(hidden)


CASES(
    "activation_hook",
    source="google-deepmind muzero ports: hidden_state.register_hook(lambda grad: grad * 0.5)",
    model=TensorHook,
)


class FunctionalCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.net, {n: p * 1.125 for n, p in self.net.named_parameters()}, (x,))


CASES(
    "functional_call",
    source="pytorch/pytorch torch/func: functional_call of scaled weights",
    model=FunctionalCall,
    refused=dict.fromkeys(["shard", "tensor", "pipeline"], "."),
)


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(3, 6, 3))
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda weight: x @ weight)(self.weights).mean(0)


CASES(
    "vmap_ensemble",
    source="pytorch/tutorials intermediate_source/ensembling.py: torch.vmap",
    model=Ensemble,
    refused=NO_STAGES,
)

DRAWN = {
    "parts": "shares",
    "refused": dict.fromkeys(["tensor", "pipeline"], "random|differs|draw"),
    "not_compared": dict.fromkeys(["tensor", "pipeline"], "the positions of seeds within a forward are not documented"),
}


class Dropout(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def hidden(self, x: Tensor) -> Tensor:
        return self.drop(super().hidden(self.drop(x)))


CASES("dropout", source="pytorch/pytorch nn/modules/dropout.py", model=Dropout, **DRAWN)


class DropPath(Net):
    def hidden(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for block in self.blocks:
            kept = x.new_empty(len(x), 1).bernoulli_(0.5) / 0.5
            x = x + kept * (block(x) - x)
        return x


CASES(
    "drop_path",
    source="huggingface/pytorch-image-models timm/layers/drop.py: x.new_empty(shape).bernoulli_",
    model=DropPath,
    **DRAWN,
)


class PythonDepth(Net):
    """Stochastic depth by Python's generator."""

    def hidden(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for block in self.blocks:
            if random.random() < 0.75:
                x = block(x)
        return x


BRANCHES = dict.fromkeys(SHARED, "blocks|branch|random|used|unused|not all")
CASES(
    "layer_drop_python",
    source="huggingface/transformers modeling_bart.py: dropout_probability = random.uniform",
    model=PythonDepth,
    **{**DRAWN, "refused": BRANCHES},
)


class PythonScale(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (0.5 + random.random())


CASES("python_random_scale", source="lucidrains/vit-pytorch: random() in forward", model=PythonScale, **DRAWN)


class NumpyMask(Net):
    def hidden(self, x: Tensor) -> Tensor:
        mask = torch.from_numpy(np.random.rand(len(x), 8) < 0.5).to(x.device)
        return super().hidden(x) * mask


CASES(
    "numpy_mask",
    source="huggingface/transformers modeling_wav2vec2.py: _compute_mask_indices draws with numpy",
    model=NumpyMask,
    **DRAWN,
)


class ChoiceOfTensor(Net):
    def forward(self, x: Tensor) -> Tensor:
        scale = [0.5, 1.0, 2.0][torch.randint(3, ()).item()]
        return super().forward(x) * scale * np.random.choice([1.0, 0.5])


CASES(
    "torch_and_numpy_choice",
    source="facebookresearch/fairseq modules/layer_drop.py: torch.empty().uniform_()",
    model=ChoiceOfTensor,
    **DRAWN,
)


class OwnGenerator(Net):
    """A generator of the model's own, which continues from forward to forward."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (0.5 + torch.rand((), generator=self.generator).item())


stateful(
    "generator_of_the_model",
    "CompVis/latent-diffusion and diffusers: generator= of a model",
    OwnGenerator,
    "generator",
    parts="rounds",
)


class SeedsItself(Net):
    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return super().forward(x) * (0.5 + torch.rand(()).item())


CASES(
    "seeds_in_forward",
    source="google-research/xtreme: torch.manual_seed in forward",
    model=SeedsItself,
    refused=dict.fromkeys(["tensor"], "random|generator"),
)

LATE = {ORDER[40]}


class Flagged(Vectors):
    """One sample of the sixth step has a flag."""

    def __getitem__(self, index: int) -> tuple[object, int]:
        return (self.features(index), torch.tensor(float(index in LATE))), index * 7 % 3


class RareUse(Net):
    """A layer that only a batch with a flagged sample uses."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 3)
        deterministic(self)

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        output = super().forward(x)
        return output + flag[:, None] * self.extra(output) if bool((flag > 0).any()) else output


class RareSkip(RareUse):
    """A layer that only a batch with a flagged sample does not use."""

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        output = Net.forward(self, x)
        return output if bool((flag > 0).any()) else output + self.extra(output)


MIXED = dict.fromkeys(["accumulation", "replicate", "shard", "tensor", "pipeline"], "extra|other samples|branch")
RARE = {"data": Flagged, "refused": MIXED, "refused_after": 5}
CASES("rare_layer", source="allenai/allennlp modules: a layer for samples of one kind", model=RareUse, steps=8, **RARE)
CASES(
    "rare_skip",
    source="mixtures and multi-task batches: huggingface/transformers models with optional inputs",
    model=RareSkip,
    steps=8,
    **RARE,
)
CASES("rare_skip_in_last_step", source="as rare_skip, in the last step", model=RareSkip, steps=6, **RARE)


class RareLoss(Net):
    def forward(self, x: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), flag


def weights_of_flagged(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """A mean over the samples that are not flagged, which differs from a mean over all in the sixth step."""
    kept = output[1] == 0
    return F.cross_entropy(output[0][kept], target[kept])


CASES(
    "late_filter_in_loss",
    source="open-mmlab losses/utils.py: avg_factor, a mean over valid samples only",
    model=RareLoss,
    loss=weights_of_flagged,
    mean_loss=weights_of_flagged,
    steps=8,
    data=Flagged,
    refused=dict.fromkeys(["accumulation", "replicate", "shard", "pipeline"], "mean|samples"),
    refused_after=5,
)

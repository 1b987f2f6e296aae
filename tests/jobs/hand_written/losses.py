"""What people write as a loss: means of all kinds, weights, ignored targets, own parameters, state, other modules."""

import torch
import torch.nn.functional as F
from common import Cases, Images, Language, Net, Pairs, Sequences, Vectors, deterministic, token_mean, token_sum
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.order import Order

CASES = Cases()
TEXT = {"model": Language, "data": Sequences}
SHARED = ["accumulation", "replicate", "shard", "pipeline"]
"""Plans that compute the samples of a batch in several micro-batches."""


def job(case: str) -> oc.Job:
    return CASES[case].job()


def own(name: str, source: str, loss: object, mean_loss: object = None, **fields: object) -> None:
    """A case whose loss is a scalar mean, which is also the loss of the loop, unless that has another one."""
    CASES(name, source=source, loss=loss, mean_loss=mean_loss or loss, **fields)


own("mean", "pytorch/examples mnist/main.py", lambda o, y: F.cross_entropy(o, y))
own(
    "sum",
    "pytorch/examples vae/main.py: reduction='sum'",
    lambda o, y: F.cross_entropy(o, y, reduction="sum"),
    refused={"": "sum"},
)
own(
    "label_smoothing",
    "pytorch/vision references/classification/train.py: label_smoothing",
    lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1),
)
own(
    "two_dimensional_mean",
    "pytorch/pytorch F.binary_cross_entropy_with_logits of one-hot targets",
    lambda o, y: F.binary_cross_entropy_with_logits(o, F.one_hot(y, 3).to(o.dtype)),
)
own(
    "kl_batchmean",
    "huggingface/transformers examples/research_projects/distillation: KLDivLoss('batchmean')",
    lambda o, y: F.kl_div(o.log_softmax(-1), F.one_hot(y, 3).to(o.dtype) * 0.5 + 0.125, reduction="batchmean"),
)
own("multi_margin", "pytorch/pytorch F.multi_margin_loss", lambda o, y: F.multi_margin_loss(o, y, p=2, margin=0.5))
own("module_loss", "pytorch/examples imagenet/main.py: criterion = nn.CrossEntropyLoss()", nn.CrossEntropyLoss())


CLASS_WEIGHTS = torch.tensor([0.25, 1.0, 4.0])


def weighted_mean(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, weight=CLASS_WEIGHTS.to(output.dtype))


own("class_weights", "pytorch/examples and nnU-Net: CrossEntropyLoss(weight=…)", weighted_mean)
own(
    "class_weights_in_module",
    "qubvel/segmentation_models.pytorch losses: a weight as a buffer of the loss module",
    nn.CrossEntropyLoss(weight=CLASS_WEIGHTS),
    weighted_mean,
)
own(
    "nll_weights",
    "pytorch/examples: nll_loss(weight=…) of log_softmax",
    lambda o, y: F.nll_loss(o.log_softmax(1), y, weight=CLASS_WEIGHTS.to(o.dtype)),
)

LATE = {sample.offset for sample in Order([64], seed=0).samples(44, 64)}
"""Samples of the first step of 64 that lie behind those with which a loss is tried."""


class LateClass(Vectors):
    """The third class, which has another weight, appears late."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.features(index), 2 if index in LATE and index % 3 == 0 else index % 2


class LateIgnored(Vectors):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.features(index), -100 if index in LATE and index % 3 == 0 else index % 2


class LateIgnoredTokens(Sequences):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens, target = super().__getitem__(index)
        target[target == -100] = 1
        if index in LATE and index % 2:
            target[1:] = -100
        return tokens, target


own(
    "late_weighted_class",
    "issue table: class weights whose rare class appears behind the trial",
    lambda o, y: F.cross_entropy(o, y, weight=torch.tensor([1.0, 1.0, 8.0]).to(o.dtype)),
    data=LateClass,
    batch=64,
)
own(
    "late_ignored_class",
    "qubvel/segmentation_models.pytorch: ignore_index of a class that is rare",
    lambda o, y: F.cross_entropy(o, y),
    data=LateIgnored,
    batch=64,
)
own(
    "late_ignored_tokens",
    "karpathy/nanoGPT model.py: ignore_index, where padding is rare",
    token_mean,
    model=Language,
    data=LateIgnoredTokens,
    batch=64,
)
own(
    "late_ignored_module",
    "huggingface/transformers modeling_gpt2.py: loss_fct = CrossEntropyLoss()",
    lambda o, y: nn.CrossEntropyLoss()(o.flatten(0, 1), y.flatten()),
    model=Language,
    data=LateIgnoredTokens,
    batch=64,
)
own(
    "late_ignored_by_mask",
    "allenai/allennlp nn/util.py: sequence_cross_entropy_with_logits, a mean by hand",
    lambda o, y: (
        (F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction="none") * (y != -100).flatten()).sum()
        / (y != -100).sum()
    ),
    model=Language,
    data=LateIgnoredTokens,
    batch=64,
    refused={"": "not a mean over samples for all targets"},
)
own("token_mean", "karpathy/nanoGPT model.py: F.cross_entropy(ignore_index)", token_mean, **TEXT)
own("next_token", "onecurve docs/losses.md", oc.loss.next_token, token_mean, **TEXT)


class HalfIgnored(Sequences):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens, target = super().__getitem__(index)
        return tokens, torch.full_like(target, -100) if index % 2 else target


own(
    "half_ignored",
    "huggingface/trl DataCollatorForCompletionOnlyLM: samples without a target",
    token_sum,
    token_mean,
    model=Language,
    data=HalfIgnored,
)


def focal(output: Tensor, target: Tensor) -> Tensor:
    entropy = F.cross_entropy(output, target, reduction="none")
    return (1 - torch.exp(-entropy)) ** 2 * entropy


def per_sample(loss: object) -> object:
    return lambda output, target: loss(output, target).mean()


own("focal", "pytorch/vision torchvision/ops/focal_loss.py", focal, per_sample(focal))
own(
    "poly",
    "abhuse/polyloss-pytorch polyloss.py: cross entropy + epsilon (1 - p)",
    lambda o, y: F.cross_entropy(o, y) + (1 - o.softmax(1).gather(1, y[:, None])).mean(),
)


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Masks(Images):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, _ = super().__getitem__(index)
        return image, (image > 0).float()


def dice_of_batch(output: Tensor, target: Tensor) -> Tensor:
    """Dice over all pixels of the batch at once: a micro-batch has another one."""
    probability = output.sigmoid()
    return 1 - (2 * (probability * target).sum() + 1) / (probability.sum() + target.sum() + 1)


def dice_of_samples(output: Tensor, target: Tensor) -> Tensor:
    probability, places = output.sigmoid(), (1, 2, 3)
    return 1 - (2 * (probability * target).sum(places) + 1) / (probability.sum(places) + target.sum(places) + 1)


PIXELS = {"model": Segmenter, "data": Masks}
IN_ONE = {"": "(other samples|whole_batch|mean|split|parts|depends)"}
NO_STAGES = {"pipeline": "cannot be split into pipeline stages|block", "tensor": "cannot|nothing in this model"}
own(
    "dice_of_batch",
    "qubvel/segmentation_models.pytorch losses/dice.py: dims=(0, 2)",
    dice_of_batch,
    **PIXELS,
    refused=IN_ONE,
)
own(
    "dice_of_samples",
    "milesial/Pytorch-UNet utils/dice_score.py: reduce_batch_first=False",
    dice_of_samples,
    per_sample(dice_of_samples),
    **PIXELS,
    refused=NO_STAGES,
)
own(
    "whole_dice",
    "qubvel/segmentation_models.pytorch losses/dice.py, as oc.loss.whole_batch",
    oc.loss.whole_batch(embed=lambda o: o, loss=dice_of_batch),
    dice_of_batch,
    **PIXELS,
    refused=NO_STAGES,
)


def in_batch(output: Tensor, _target: Tensor) -> Tensor:
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


own(
    "in_batch_negatives",
    "UKPLab/sentence-transformers losses/MultipleNegativesRankingLoss.py",
    in_batch,
    refused=IN_ONE,
)


def triplet(output: Tensor, labels: Tensor) -> Tensor:
    distance, same = torch.cdist(output, output), labels[:, None] == labels[None]
    positive = (distance * same).amax(1)
    return F.relu(positive - distance.masked_fill(same, float("inf")).amin(1) + 0.25)


own(
    "batch_hard_triplet",
    "KevinMusgrave/pytorch-metric-learning miners/batch_hard_miner.py",
    oc.loss.whole_batch(embed=lambda o: o, loss=triplet),
    per_sample(triplet),
    refused={"pipeline": "two passes"},
)


def barlow(output: Tensor, _target: Tensor) -> Tensor:
    normal = (output - output.mean(0)) / (output.std(0) + 1)
    correlation = normal.T @ normal / len(output)
    return (correlation - torch.eye(3).to(correlation)).square().sum()


own("barlow_twins", "facebookresearch/barlowtwins main.py: c = bn(z1).T @ bn(z2)", barlow, refused=IN_ONE)


class WithPenalty(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.embed.weight.square().sum()


def penalized(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(output[0], target) + 0.125 * output[1]


own(
    "penalty_of_weights",
    "a penalty that forward returns: pytorch/botorch, VIB and sparse autoencoders",
    penalized,
    model=WithPenalty,
)


class AllPenalty(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), sum(p.square().sum() for p in self.parameters()).expand(len(x))


own(
    "penalty_per_sample",
    "mingzhang96 L2 of all weights inside forward",
    lambda o, y: F.cross_entropy(o[0], y, reduction="none") + 0.03125 * o[1],
    lambda o, y: F.cross_entropy(o[0], y) + 0.03125 * o[1].mean(),
    model=AllPenalty,
    refused={"pipeline": "block", "tensor": "."},
)

BUILT: list[nn.Module] = []


class Remembered(Net):
    """A model that a global names, so that the loss can reach it."""

    def __init__(self) -> None:
        super().__init__()
        BUILT.append(self)


def with_l2(output: Tensor, target: Tensor) -> Tensor:
    squares = sum(p.square().sum() for p in BUILT[-1].parameters())
    return F.cross_entropy(output, target, reduction="none") + 0.03125 * squares.to(output)


own(
    "l2_of_global_model",
    "a global `model` in scripts on discuss.pytorch.org: l2_lambda * sum(p.pow(2).sum())",
    with_l2,
    per_sample(with_l2),
    model=Remembered,
    refused={"": "parameter|another model|trained model"},
)


class LearnedTemperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output * self.temperature.exp(), target, reduction="none")


OWN_PARAMETERS = {"": "temperature|weight|centers|log_vars|parameter"}
own(
    "loss_with_temperature",
    "openai/CLIP: logit_scale in the loss module",
    LearnedTemperature(),
    per_sample(LearnedTemperature().double()),
    refused=OWN_PARAMETERS,
)


class ArcFace(nn.Module):
    """Margins between classes, whose centers are parameters of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.sin(torch.arange(9.0)).reshape(3, 3))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(output), F.normalize(self.weight.to(output.dtype)))
        return F.cross_entropy(4 * (cosine - 0.25 * F.one_hot(target, 3)), target, reduction="none")


own(
    "arc_face",
    "KevinMusgrave/pytorch-metric-learning losses/arcface_loss.py: self.W",
    ArcFace(),
    per_sample(ArcFace().double()),
    refused=OWN_PARAMETERS,
)


class UncertaintyWeights(nn.Module):
    """Two tasks, whose weights are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        first, second = F.cross_entropy(output, target, reduction="none"), output.square().mean(1)
        return (torch.exp(-self.log_vars) * torch.stack([first, second], 1) + self.log_vars).sum(1)


own(
    "learned_task_weights",
    "yaringal/multi-task-learning-example multi-task-learning-example-pytorch.ipynb: log_vars",
    UncertaintyWeights(),
    per_sample(UncertaintyWeights().double()),
    refused=OWN_PARAMETERS,
)


class Annealed:
    """A weight that grows with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(output, target, reduction="none") * min(1.0, self.calls / 8)


_by_hand = Annealed()
STATE = dict.fromkeys([*SHARED, "tensor"], "calls|state|changes|counter|count|weight")
own(
    "annealed_loss",
    "AntixK/PyTorch-VAE models/beta_vae.py: self.num_iter += 1 in loss_function",
    Annealed(),
    lambda o, y: _by_hand(o, y).mean(),
    refused=STATE,
)

_global = {"step": 0}


def annealed_by_global(output: Tensor, target: Tensor) -> Tensor:
    _global["step"] += 1
    return F.cross_entropy(output, target, reduction="none") * min(1.0, _global["step"] / 8)


own(
    "annealed_by_global",
    "timbmg/Sentence-VAE train.py: a step counter in the script",
    annealed_by_global,
    per_sample(annealed_by_global),
    refused=STATE,
)


class BalancedLoss(nn.Module):
    """Class frequencies as a moving average in a buffer of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(3))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        counts = torch.bincount(target, minlength=3).to(output.dtype)
        self.weight = 0.5 * self.weight.to(output) + 0.5 * counts
        return F.cross_entropy(output, target, reduction="none") / (1 + self.weight[target])


_balanced = BalancedLoss()
own(
    "class_balance_buffer",
    "richardaecn/class-balanced-loss and BalancedMetaSoftmax: class counts of the loss",
    BalancedLoss(),
    lambda o, y: _balanced(o, y).mean(),
    refused={"": "weight|other samples|state|mean|split|does not compute the same"},
)


class Center(nn.Module):
    """The running centre of DINO, which the loss keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.center = torch.zeros(3)

    def forward(self, output: Tensor, _target: Tensor) -> Tensor:
        shifted = (output.detach() - self.center.to(output)).softmax(1)
        self.center = self.center.to(output) * 0.5 + output.detach().mean(0) * 0.5
        return -(shifted * output.log_softmax(1)).sum(1)


_center = Center()
own(
    "dino_center",
    "facebookresearch/dino main_dino.py: DINOLoss.update_center",
    Center(),
    lambda o, y: _center(o, y).mean(),
    refused={"": "center|other samples|state|split"},
)


class Auxiliary(Net):
    """Stores a loss of its own as an attribute, which the loss function reads."""

    def __init__(self) -> None:
        super().__init__()
        self.aux_loss: Tensor | None = None
        BUILT.append(self)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        self.aux_loss = hidden.square().mean(1)
        return self.head(hidden)


def with_auxiliary(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none") + 0.25 * BUILT[-1].aux_loss


own(
    "auxiliary_attribute",
    "davidmrau/mixture-of-experts and fairseq modules/moe: self.l_aux, summed over modules",
    with_auxiliary,
    per_sample(with_auxiliary),
    model=Auxiliary,
    refused={"": "parameter|aux_loss|trained model|stage|size of tensor"},
)


class TwoHeads(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.hidden(x)
        return {"class": self.head(hidden), "norm": hidden.square().mean(1)}


def two_tasks(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(output["class"], target, reduction="none") + 0.25 * output["norm"]


own(
    "multi_task",
    "facebookresearch/detr models/detr.py: a dict of outputs",
    two_tasks,
    per_sample(two_tasks),
    model=TwoHeads,
)


class Squeezed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :1].squeeze()


class OneNumber(Vectors):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features(index), torch.tensor(index / 64)


own(
    "squeezed_regression",
    "pytorch/examples regression: squeeze() of [B, 1]",
    lambda o, y: (o - y) ** 2,
    lambda o, y: F.mse_loss(o, y),
    model=Squeezed,
    data=OneNumber,
)


class NotSqueezed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :1]


own(
    "broadcast_regression",
    "a common mistake: mse_loss of [B, 1] and [B], UserWarning of torch/nn/functional.py",
    lambda o, y: F.mse_loss(o, y),
    model=NotSqueezed,
    data=OneNumber,
    refused={"": "other samples|broadcast|shape|split|mean"},
)
own("mean_of_two", "pytorch/pytorch F.mse_loss of [B, 2]", lambda o, y: F.mse_loss(o[:, :2], y), data=Pairs)
own(
    "gaussian_nll",
    "pytorch/pytorch F.gaussian_nll_loss",
    lambda o, y: F.gaussian_nll_loss(o[:, :2], y, F.softplus(o[:, 2:]).expand(-1, 2)),
    data=Pairs,
)
own(
    "root_mean_square",
    "a root of the mean, as Kaggle solutions train with RMSE: torch.sqrt(criterion(yhat, y))",
    lambda o, y: torch.sqrt(F.mse_loss(o[:, :2], y) + 2**-20),
    data=Pairs,
    refused=IN_ONE,
)
own(
    "top_k_mean",
    "online hard example mining: facebookresearch/maskrcnn-benchmark and OHEM, topk of the losses",
    lambda o, y: F.cross_entropy(o, y, reduction="none").topk(len(y) // 2).values.mean(),
    refused=IN_ONE,
)
own(
    "detached_weight",
    "focal weights without gradient: mean of w.detach() * loss",
    lambda o, y: F.cross_entropy(o, y, reduction="none") * (1 - o.softmax(1).gather(1, y[:, None])[:, 0]).detach(),
    lambda o, y: (
        F.cross_entropy(o, y, reduction="none") * (1 - o.softmax(1).gather(1, y[:, None])[:, 0]).detach()
    ).mean(),
)


class Speech(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        sound, length = torch.sin(torch.arange(60).reshape(10, 6) * 0.25 + index), 2 + index % 3
        letters = torch.zeros(4, dtype=torch.long)
        letters[:length] = (torch.arange(length) * 2 + index) % 4 + 1
        return sound, (letters, torch.tensor(10 - index % 3), torch.tensor(length))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True, bidirectional=True), nn.Linear(16, 5)
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0]).log_softmax(-1)


def ctc(reduction: str) -> object:
    return lambda o, t: F.ctc_loss(o.transpose(0, 1), t[0], t[1], t[2], reduction=reduction)


SPEECH = {"model": Recurrent, "data": Speech, "refused": NO_STAGES}
own(
    "ctc_per_sample",
    "SeanNaren/deepspeech.pytorch model.py: CTCLoss(reduction='none')",
    ctc("none"),
    per_sample(ctc("none")),
    **SPEECH,
)
own("ctc_mean", "SeanNaren/deepspeech.pytorch model.py: CTCLoss(reduction='mean')", ctc("mean"), **SPEECH)


class TwoTowers(nn.Module):
    """Two embeddings of a sample, and a learned scale of their products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.zeros(()))
        deterministic(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.tanh(self.first(x)), self.second(x * x), self.scale + 1.0


def contrastive(output: tuple[Tensor, Tensor, Tensor], _target: Tensor) -> Tensor:
    first, second = F.normalize(output[0], dim=1), F.normalize(output[1], dim=1)
    products, places = first @ second.T * output[2].exp().clamp(max=100), torch.arange(len(first))
    return (F.cross_entropy(products, places) + F.cross_entropy(products.T, places)) / 2


TOWERS = {"model": TwoTowers, "refused": NO_STAGES}
own("clip", "mlfoundations/open_clip src/open_clip/loss.py: ClipLoss", oc.loss.clip(), contrastive, **TOWERS)
own(
    "clip_clipped",
    "mlfoundations/open_clip src/open_clip_train/train.py: grad_clip_norm",
    oc.loss.clip(),
    contrastive,
    options={"clip": 0.03125},
    **TOWERS,
)


def weighted_pairs(output: Tensor, labels: Tensor) -> oc.Weighted:
    weights = 1.0 + labels.to(output.dtype)
    entropy = F.cross_entropy(output @ output.T, torch.arange(len(output)), reduction="none")
    return oc.Weighted((weights * entropy).sum(), weights.sum())


def weighted_pairs_mean(output: Tensor, labels: Tensor) -> Tensor:
    pairs = weighted_pairs(output, labels)
    return pairs.sum / pairs.count


own(
    "weighted_pairs",
    "UKPLab/sentence-transformers: weighted in-batch negatives, as oc.loss.whole_batch",
    oc.loss.whole_batch(embed=lambda output: output, loss=weighted_pairs),
    weighted_pairs_mean,
    refused={"pipeline": "two passes"},
)

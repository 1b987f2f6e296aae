"""Kinds of modules and of outputs: norms, attention, in-place operations, checkpointing, mixtures of experts."""

import dataclasses
import typing

import torch
import torch.nn.functional as F
from common import Block, Cases, Images, Language, Net, Sequences, deterministic, token_mean, token_sum
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import onecurve as oc

CASES = Cases()
TEXT = {"data": Sequences, "loss": token_sum, "mean_loss": token_mean}
NO_STAGES = {
    "pipeline": "cannot be split into pipeline stages|block",
    "tensor": "cannot|nothing in this model|batch norm",
}
BATCH_NORM = {**NO_STAGES, "accumulation": "batch norm|norm"}


def job(case: str) -> oc.Job:
    return CASES[case].job()


class Convolutions(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(1, 4, 3, padding=1), norm, nn.Conv2d(4, 3, 3)
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(x)))).mean((2, 3))


def norm(name: str, source: str, make: object, **fields: object) -> None:
    CASES(name, source=source, model=lambda: Convolutions(make()), data=Images, **fields)


ROUNDS = {"parts": "rounds", "refused": BATCH_NORM}
TORCH = "pytorch/pytorch nn/modules"
norm("batch_norm", f"{TORCH}/batchnorm.py", lambda: nn.BatchNorm2d(4), **ROUNDS)
norm(
    "batch_norm_cumulative", f"{TORCH}/batchnorm.py: momentum=None", lambda: nn.BatchNorm2d(4, momentum=None), **ROUNDS
)
norm(
    "batch_norm_untracked",
    f"{TORCH}/batchnorm.py: track_running_stats=False",
    lambda: nn.BatchNorm2d(4, track_running_stats=False),
    **ROUNDS,
)
norm("batch_norm_not_affine", f"{TORCH}/batchnorm.py: affine=False", lambda: nn.BatchNorm2d(4, affine=False), **ROUNDS)
norm("group_norm", f"{TORCH}/normalization.py: GroupNorm", lambda: nn.GroupNorm(2, 4), refused=NO_STAGES)
norm(
    "instance_norm_tracked",
    f"{TORCH}/instancenorm.py: track_running_stats=True",
    lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    parts="rounds",
    refused={"": "running|norm", **NO_STAGES},
)
norm(
    "local_response_norm",
    f"{TORCH}/normalization.py: LocalResponseNorm",
    lambda: nn.LocalResponseNorm(2),
    refused=NO_STAGES,
)


class SyncNorm(Convolutions):
    """SyncBatchNorm, which plain PyTorch computes on one device as batch norm."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind(4))


CASES(
    "sync_batch_norm",
    source="pytorch/pytorch nn/modules/batchnorm.py: convert_sync_batchnorm",
    data=Images,
    model=lambda: SyncNorm(nn.SyncBatchNorm),
    torch_model=lambda: SyncNorm(nn.BatchNorm2d),
    parts="rounds",
    refused={"": "SyncBatchNorm", **BATCH_NORM},
)


class Renorm(nn.Module):
    """Batch renormalization: corrects the batch's statistics toward the running ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_std", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.running_mean) / self.running_std
        mean, std = x.mean(0), x.std(0, correction=0) + 2**-10
        r = (std.detach() / self.running_std).clamp(0.5, 2)
        d = ((mean.detach() - self.running_mean) / self.running_std).clamp(-1, 1)
        self.running_mean += 0.125 * (mean.detach() - self.running_mean)
        self.running_std += 0.125 * (std.detach() - self.running_std)
        return (x - mean) / std * r + d


class Renormalized(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Renorm(8)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(super().hidden(x))


CASES(
    "batch_renorm",
    source="ludvb/batchrenorm batchrenorm/batchrenorm.py",
    model=Renormalized,
    refused={"": "norm|running|other samples"},
)


class NormTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.first(self.norm(x)))))


CASES("batch_norm_called_twice", source="siamese networks: one batch norm for two inputs", model=NormTwice, **ROUNDS)


class Attention(Language):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        deterministic(self)

    def hidden(self, tokens: Tensor) -> Tensor:
        x = super().hidden(tokens)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


CASES("multihead_attention", source=f"{TORCH}/activation.py: MultiheadAttention", model=Attention, **TEXT)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        deterministic(self)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0))


CASES("transformer_encoder", source=f"{TORCH}/transformer.py: TransformerEncoder", model=Encoder, **TEXT)


class Translator(nn.Module):
    """Sequence to sequence: the target, shifted by one, is the decoder's input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        deterministic(self)

    def forward(self, tokens: Tensor) -> Tensor:
        shifted = F.pad(tokens[:, :-1], (1, 0))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=self.embed.weight.dtype)
        return self.head(self.transformer(self.embed(tokens), self.embed(shifted), tgt_mask=mask, tgt_is_causal=True))


CASES(
    "encoder_decoder_shifted",
    source="huggingface/transformers modeling_bart.py: shift_tokens_right",
    model=Translator,
    refused=NO_STAGES,
    **TEXT,
)


@dataclasses.dataclass
class Output:
    logits: Tensor
    norm: Tensor


class NamedOutput(typing.NamedTuple):
    logits: Tensor
    norm: Tensor


class DataclassOutput(Net):
    def forward(self, x: Tensor) -> Output:
        logits = super().forward(x)
        return Output(logits, logits.square().mean(1))


class TupleOutput(Net):
    def forward(self, x: Tensor) -> NamedOutput:
        logits = super().forward(x)
        return NamedOutput(logits, logits.square().mean(1))


def with_norm(output: typing.Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output.logits, target, reduction="none") + 0.125 * output.norm


OUTPUT = {"loss": with_norm, "mean_loss": lambda o, y: with_norm(o, y).mean()}
CASES(
    "dataclass_output", source="huggingface/transformers utils/generic.py: ModelOutput", model=DataclassOutput, **OUTPUT
)
CASES("named_tuple_output", source="pytorch/vision models/inception.py: InceptionOutputs", model=TupleOutput, **OUTPUT)


class IntegerOutput(Net):
    def forward(self, x: Tensor) -> dict[str, typing.Any]:
        logits = super().forward(x)
        return {"logits": logits, "class": logits.argmax(1), "size": len(x), "name": "net", "none": None}


CASES(
    "integer_outputs",
    source="facebookresearch/detr: outputs with integers and None",
    model=IntegerOutput,
    loss=lambda o, y: F.cross_entropy(o["logits"], y, reduction="none") * (1 + (o["class"] == y)),
    mean_loss=lambda o, y: (F.cross_entropy(o["logits"], y, reduction="none") * (1 + (o["class"] == y))).mean(),
)


class InPlace(Net):
    def hidden(self, x: Tensor) -> Tensor:
        x = super().hidden(x) + 1
        x[:, 0] = x[:, 0] * 2
        x.mul_(0.5)
        return torch.tanh_(x)


CASES(
    "in_place_operations", source="pytorch/vision models/resnet.py: ReLU(inplace=True), out += identity", model=InPlace
)


class Recomputed(Net):
    reentrant = False

    def hidden(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class RecomputedReentrant(Recomputed):
    reentrant = True


RECOMPUTED = {"refused": {"pipeline": "checkpoint|stage|block"}}
CASES("checkpointed", source="pytorch/pytorch torch/utils/checkpoint.py", model=Recomputed, **RECOMPUTED)
CASES(
    "checkpointed_reentrant",
    source="karpathy-style scripts: checkpoint(block, x)",
    model=RecomputedReentrant,
    **RECOMPUTED,
)


class Compiled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.compile(self.head, backend="eager")


CASES(
    "compiled_child",
    source="pytorch/torchtune: torch.compile of a layer in the constructor",
    model=Compiled,
    torch_model=Net,
    refused={"": "compile|_orig_mod"},
)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))
        deterministic(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = self.gate(x).softmax(-1)
        weight, chosen = probabilities.max(-1)
        output = x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                output = output.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return output, probabilities


def balance_of_samples(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(output[0], target, reduction="none") + 0.125 * output[1].square().sum(1)


def balance_of_batch(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(output[0], target) + 0.125 * output[1].mean(0).square().sum()


UNUSED = {**NO_STAGES, "": "experts"}
CASES(
    "experts",
    source="davidmrau/mixture-of-experts moe.py: experts without tokens are not called",
    model=Experts,
    loss=balance_of_samples,
    mean_loss=lambda o, y: balance_of_samples(o, y).mean(),
    refused=UNUSED,
    refused_after=3,
)
CASES(
    "experts_balanced_over_batch",
    source="huggingface/transformers modeling_mixtral.py: load_balancing_loss_func",
    model=Experts,
    loss=balance_of_batch,
    mean_loss=balance_of_batch,
    refused={"": "other samples|mean|split|experts|depends"},
)
CASES(
    "experts_whole_batch",
    source="huggingface/transformers modeling_mixtral.py, as oc.loss.whole_batch",
    model=Experts,
    loss=oc.loss.whole_batch(embed=lambda o: o, loss=balance_of_batch),
    mean_loss=balance_of_batch,
    refused=UNUSED,
    refused_after=3,
)


class DropBlock(Net):
    """A mask that depends on the training mode and is scaled by its own mean over the batch."""

    def hidden(self, x: Tensor) -> Tensor:
        x = super().hidden(x)
        mask = (x.detach() < 0.5).to(x.dtype)
        return x * mask * mask.numel() / (mask.sum() + 1) if self.training else x


CASES(
    "mask_scaled_over_batch",
    source="miguelvr/dropblock dropblock/dropblock.py: out * block_mask.numel() / block_mask.sum()",
    model=DropBlock,
    refused={"": "other samples|differs|batch"},
)


class LayerScale(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gammas = nn.ParameterList(nn.Parameter(torch.full((8,), 2.0**-10)) for _ in range(4))

    def hidden(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for gamma, block in zip(self.gammas, self.blocks, strict=True):
            x = x + gamma * block(x)
        return x


CASES("layer_scale", source="facebookresearch/deit cait_models.py: LayerScale", model=LayerScale)


class RunByName(Net):
    """Modules that are found by their names, in a ModuleDict."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: Block() for name in ("a", "b")})
        deterministic(self)

    def hidden(self, x: Tensor) -> Tensor:
        return sum(self.parts[name](super(RunByName, self).hidden(x)) for name in sorted(self.parts))


CASES(
    "module_dict",
    source="pytorch/vision models/_utils.py: IntermediateLayerGetter",
    model=RunByName,
    refused={"pipeline": "block|stage|once"},
)

"""What people write as a dataset and a collate function: odd dtypes, augmentation, mixing, padding, masking."""

import random
from collections import namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from common import (
    Cases,
    Language,
    Net,
    Pairs,
    Sequences,
    Vectors,
    deterministic,
    doubled,
    in_double,
    sgd,
    token_mean,
    token_sum,
)
from torch import Tensor, nn
from torch.utils.data import default_collate

import onecurve as oc
from onecurve.data.order import Order
from onecurve.describe.seed import mix
from onecurve.device.rng import seed_all

CASES = Cases()
IN_ONE = {"": "collate|other samples|random|draw|samples of the batch"}
NO_STAGES = {"pipeline": "cannot be split into pipeline stages|block", "tensor": "cannot|nothing in this model"}


def job(case: str) -> oc.Job:
    return CASES[case].job()


class Timestamps(Vectors):
    """Large float64 numbers, which float32 cannot tell apart."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return 1.7e9 + self.features(index).double(), index % 3


class Offset(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x - 1.7e9).to(self.embed.weight.dtype))


CASES("float64_inputs", source="jdb78/pytorch-forecasting: timestamps in float64", model=Offset, data=Timestamps)


class LargeTargets(Pairs):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x, 1.7e9 + y.double()


def from_offset(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, :2] - (target - 1.7e9).to(output.dtype)).square().mean(1)


CASES(
    "float64_targets",
    source="jdb78/pytorch-forecasting: targets in float64",
    data=LargeTargets,
    loss=from_offset,
    mean_loss=lambda o, y: from_offset(o, y).mean(),
)


class OffsetBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("begin", torch.tensor(1.7e9 + 5, dtype=torch.float64))

    def forward(self, number: Tensor) -> Tensor:
        x = (1.7e9 + number.double() - self.begin) / 64
        return super().forward(x.expand(-1, 6).to(self.embed.weight.dtype))


class Numbers(Vectors):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([index]), index % 3


CASES(
    "float64_buffer",
    source="astropy-style epochs as float64 buffers: pyg-team and skyportal models",
    model=OffsetBuffer,
    data=Numbers,
)


class NumpySamples(Vectors):
    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return self.features(index).numpy(), np.int64(index % 3)


CASES("numpy_samples", source="pytorch/tutorials data_loading_tutorial.py: numpy arrays", data=NumpySamples)


class DictSamples(Vectors):
    def __getitem__(self, index: int) -> tuple[dict[str, object], int]:
        return {"x": self.features(index), "name": "a", "known": True}, index % 3


class DictInput(Net):
    def forward(self, x: Tensor, name: list[str], known: Tensor) -> Tensor:
        return super().forward(x) * (2 if name[0] == "a" and bool(known.all()) else 1)


CASES(
    "dict_with_strings", source="huggingface/datasets: samples as dicts with names", model=DictInput, data=DictSamples
)

Sample = namedtuple("Sample", "x scale")


class NamedTuples(Vectors):
    def __getitem__(self, index: int) -> tuple[Sample, int]:
        return Sample(self.features(index), torch.tensor(1.0 + index % 2)), index % 3


class NamedInput(Net):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return super().forward(x * scale[:, None])


CASES(
    "named_tuple_samples",
    source="pytorch/pytorch utils/data/_utils/collate.py: namedtuple",
    model=NamedInput,
    data=NamedTuples,
)


class DifferentLengths(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return (torch.arange(2 + index % 5) * (index + 1)) % 12, index % 3


def padded(samples: list) -> tuple:
    texts, targets = zip(*samples, strict=True)
    lengths = torch.tensor([len(text) for text in texts])
    return (nn.utils.rnn.pad_sequence(texts, batch_first=True), lengths), torch.tensor(targets)


class Packed(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(12, 5), kind(5, 6, batch_first=True), nn.Linear(6, 3)
        deterministic(self)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, state = self.rnn(packed)
        return self.head((state[0] if isinstance(state, tuple) else state)[-1])


TEXTS = {"data": DifferentLengths, "options": {"collate": padded}}
CASES(
    "packed_gru",
    source="pytorch/pytorch nn/utils/rnn.py: pack_padded_sequence",
    model=lambda: Packed(nn.GRU),
    refused=NO_STAGES,
    **TEXTS,
)
CASES(
    "packed_lstm",
    source="bentrevett/pytorch-sentiment-analysis: packed LSTM",
    model=lambda: Packed(nn.LSTM),
    refused=NO_STAGES,
    **TEXTS,
)


class Pooled(Language):
    """A mean over the tokens that are not padding; the padded length differs from batch to batch."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        mask = torch.arange(tokens.shape[1])[None] < lengths[:, None]
        return self.head((x * mask[..., None]).sum(1) / lengths[:, None])[:, :3]


CASES(
    "masked_mean",
    source="UKPLab/sentence-transformers models/Pooling.py: mean of tokens by mask",
    model=Pooled,
    **TEXTS,
)


class PoolsPadding(Pooled):
    """Forgets the mask: the result depends on the longest text of the batch."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))[:, :3]


CASES(
    "mean_over_padding",
    source="a common mistake: output.mean(1) of padded texts, discuss.pytorch.org",
    model=PoolsPadding,
    **TEXTS,
    refused=dict.fromkeys(
        ["accumulation", "replicate", "shard", "pipeline", "tensor", "mb"], "other samples|differs|padd|collate|depends"
    ),
)


def sorted_by_length(samples: list) -> tuple:
    return padded(sorted(samples, key=lambda sample: -len(sample[0])))


CASES(
    "sorted_collate",
    source="jasonwu0731/GettingStarted-LM: data.sort(key=lambda x: len(x[0]), reverse=True)",
    model=Pooled,
    data=DifferentLengths,
    options={"collate": sorted_by_length},
    refused={"": "depends on the other samples"},  # the trial takes values in the order of the samples
)


def mixed_up(samples: list) -> tuple:
    x, y = default_collate(samples)
    partner = torch.randperm(len(x))
    return 0.75 * x + 0.25 * x[partner], (y, y[partner])


def mixed_loss(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    entropies = [F.cross_entropy(output, y, reduction="none") for y in target]
    return 0.75 * entropies[0] + 0.25 * entropies[1]


CASES(
    "mixup_in_collate",
    source="pytorch/vision references/classification/transforms.py: RandomMixup in collate_fn",
    options={"collate": mixed_up},
    loss=mixed_loss,
    mean_loss=lambda o, y: mixed_loss(o, y).mean(),
    refused=IN_ONE,
)


def rolled(samples: list) -> tuple:
    """Mixup with the neighbour, which draws nothing but depends on the micro-batch."""
    x, y = default_collate(samples)
    return 0.75 * x + 0.25 * x.roll(1, 0), (y, y.roll(1, 0))


CASES(
    "rolled_mixup_in_collate",
    source="huggingface/pytorch-image-models timm/data/mixup.py: x.flip(0)",
    options={"collate": rolled},
    loss=mixed_loss,
    mean_loss=lambda o, y: mixed_loss(o, y).mean(),
    refused=IN_ONE,
)


def standardized(samples: list) -> tuple:
    x, y = default_collate(samples)
    return (x - x.mean(0)) / (x.std(0) + 1), y


CASES(
    "standardized_in_collate",
    source="batch statistics in a collate function: Kaggle notebooks",
    options={"collate": standardized},
    refused=IN_ONE,
)


def noisy(samples: list) -> tuple:
    x, y = default_collate(samples)
    return x + 0.5 * torch.randn_like(x), y


CASES(
    "noise_in_collate",
    source="huggingface/transformers data/data_collator.py: torch_mask_tokens draws in the collator",
    options={"collate": noisy},
    refused=IN_ONE,
)


def dropped(samples: list) -> tuple:
    """Leaves broken samples out."""
    return default_collate([sample for sample in samples if sample[1] != 2])


CASES(
    "collate_drops_samples",
    source="pytorch/pytorch issue 1137: batch = list(filter(lambda x: x is not None, batch))",
    options={"collate": dropped},
    refused={"": "collate|samples"},
)


def doubled_batch(samples: list) -> tuple:
    """Two views of each sample."""
    x, y = default_collate(samples)
    return torch.cat([x, x.flip(1)]), torch.cat([y, y])


CASES(
    "two_views_in_collate",
    source="HobbitLong/SupContrast main_supcon.py: torch.cat([images[0], images[1]])",
    options={"collate": doubled_batch},
    refused={"": "collate|samples"},
)


class Augmented(Vectors):
    """Draws with three generators for each sample; 7 samples, so that a batch contains the end of an epoch."""

    def __init__(self) -> None:
        super().__init__(7)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self.features(index) + 0.25 * torch.randn(6)
        return x + 0.25 * random.random() + 0.25 * float(np.random.rand()), index % 3


def augmented_by_hand() -> nn.Module:
    model = in_double(Net)
    optimizer, data, order = sgd(model), Augmented(), Order([7], seed=0)
    for step in range(7):
        samples = []
        for sample in order.samples(step * 8, step * 8 + 8):
            seed_all(mix(0, sample.epoch, sample.offset))
            samples.append(data[sample.offset])
        inputs, target = doubled(default_collate(samples))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    return model


CASES(
    "augmented",
    source="pytorch/vision transforms: random augmentation in __getitem__",
    data=Augmented,
    steps=7,
    loop=augmented_by_hand,
)
CASES(
    "augmented_by_workers",
    source="pytorch/examples imagenet/main.py: workers",
    data=Augmented,
    steps=7,
    loop=augmented_by_hand,
    options={"workers": 2},
)


class Masked(Sequences):
    """Masked language modelling in the dataset, by the sample's number."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens, _ = super().__getitem__(index)
        chosen = (torch.arange(6) + index) % 3 == 0
        return torch.where(chosen, 11, tokens), torch.where(chosen, tokens, -100)


CASES(
    "masked_language_model",
    source="google-research/bert and huggingface run_mlm.py: -100 where nothing is masked",
    model=Language,
    data=Masked,
    loss=token_sum,
    mean_loss=token_mean,
)


class CountingSamples(Vectors):
    """A dataset that counts its calls, as a curriculum does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.calls += 1
        return self.features(index) * min(1.0, self.calls / 16), index % 3


CASES(
    "dataset_that_counts",
    source="a curriculum in __getitem__: facebookresearch/fairseq data/add_target_dataset.py and others",
    data=CountingSamples,
    refused={"": "data|sample"},
)


def _subset() -> torch.utils.data.Dataset:
    return torch.utils.data.random_split(Vectors(96), [64, 32])[0]


def _split_by_hand() -> nn.Module:
    """The split comes from the job's seed, which is set before the user's functions are called."""
    seed_all(mix(0))
    data, model = _subset(), in_double(Net)
    optimizer, order = sgd(model), Order([64], seed=0)
    for step in range(4):
        inputs, target = doubled(default_collate([data[s.offset] for s in order.samples(step * 8, step * 8 + 8)]))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    return model


CASES(
    "random_split_without_generator",
    source="pytorch/tutorials: random_split(dataset, [n, m])",
    data=_subset,
    loop=_split_by_hand,
)

"""A job with everything that makes splitting hard.

Tied, scalar, frozen and unused parameters; sizes that no number of ranks divides; batch norm; dropout; samples of
different lengths; a tuple as input; an optimizer that is a function and returns a torch.optim object.
"""

import torch
from torch import Tensor, nn

import onecurve as oc


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 5)
        self.norm = nn.BatchNorm1d(5)
        self.second = nn.Linear(5, width)
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.second(torch.relu(self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)))


class Tricky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 7)
        self.layers = nn.ModuleList(Layer(7) for _ in range(3))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(7, 11)
        self.head.weight = self.words.weight
        self.frozen = nn.Linear(7, 7)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.register_buffer("steps_seen", torch.zeros((), dtype=torch.int64))
        self.scales = [torch.full((7,), 0.5)]  # a tensor that is neither a parameter nor a buffer

    def forward(self, words: Tensor, shift: Tensor) -> Tensor:
        x = self.words(words) * self.scales[0].to(shift) + shift[:, None, None] + self.frozen(self.words(words))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.drop(x))


class Sequences:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        length = 2 + index % 5
        return (torch.randint(11, (length,)), torch.randn(())), torch.randint(11, (length,))


def collate(samples: list) -> tuple:
    """Pad to a fixed length. Batch norm sees the padding, so it must not depend on the other samples of the batch."""
    pad = nn.functional.pad
    words = torch.stack([pad(inputs[0], (0, 6 - len(inputs[0]))) for inputs, _ in samples])
    shift = torch.stack([inputs[1] for inputs, _ in samples])
    return (words, shift), torch.stack([pad(target, (0, 6 - len(target)), value=-100) for _, target in samples])


def job(
    batch_norm: str = "sync", clip: float = 0.5, optimizer: str = "rmsprop", loss: str = "tokens", steps: int = 20
) -> oc.Job:
    optimizers = {
        "rmsprop": lambda named: torch.optim.RMSprop([p for _, p in named], lr=0.01, momentum=0.9),
        "adamw": oc.AdamW(lr=0.01, groups={"*norm*|*.gain": {"weight_decay": 0.0}, "words.*": {"lr": 0.02}}),
        "lamb": oc.LAMB(lr=0.01, groups={"*norm*|*.gain|*.bias": {"adapt": False, "weight_decay": 0.0}}),
        "lars": oc.LARS(lr=1.0, weight_decay=1e-3, groups={"*norm*|*.gain|*.bias": {"adapt": False, "lr": 0.01}}),
        "adafactor": lambda named: torch.optim.Adafactor([p for _, p in named]),
    }
    losses = {
        "tokens": oc.loss.next_token,
        "token mean": lambda out, target: nn.functional.cross_entropy(out.flatten(0, 1), target.flatten()),
    }
    return oc.Job(
        model=Tricky,
        loss=losses[loss],
        data=Sequences,
        collate=collate,
        optimizer=optimizers[optimizer],
        schedule=oc.linear(warmup=2),
        clip=clip,
        global_batch=16,
        steps=steps,
        batch_norm=batch_norm,
        seed=3,
    )

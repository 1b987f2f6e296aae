"""A small residual network on scikit-learn's handwritten digits: `onecurve run examples/resnet.py`."""

import random

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import onecurve as oc


class Residual(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(
            Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


class Digits:
    """8 × 8 images of digits. Every fifth image is for evaluation; the others are augmented by random shifts and
    brightness."""

    def __init__(self, train: bool) -> None:
        digits = load_digits()
        indices = [i for i in range(len(digits.target)) if (i % 5 > 0) == train]
        self.images = torch.tensor(digits.images[indices], dtype=torch.float32).unsqueeze(1) / 8 - 1
        self.labels = torch.tensor(digits.target[indices])
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.train:
            image = image.roll((random.randint(-1, 1), random.randint(-1, 1)), (1, 2)) * (0.8 + 0.4 * torch.rand(()))
        return image, self.labels[index]


def job(lr: float = 0.1, width: int = 16, batch: int = 64, epochs: float = 6, clip: float = 2.0) -> oc.Job:
    return oc.Job(
        model=lambda: ResNet(width),
        loss=oc.loss.cross_entropy,
        data=lambda: Digits(train=True),
        optimizer=oc.SGD(lr=lr, momentum=0.9, weight_decay=5e-4, groups={"*norm*": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=10),
        clip=clip,
        global_batch=batch,
        epochs=epochs,
        metrics={"top1": oc.metric.top1},
        evaluate=oc.Evaluate(lambda: Digits(train=False), every=45),
    )

"""A byte-level GPT on the source text of Python's standard library: `onecurve run examples/gpt.py`."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.apply(self._start)
        self.head.weight = self.bytes.weight  # tied

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, text_BT: Tensor) -> Tensor:
        x = self.bytes(text_BT) + self.places(torch.arange(text_BT.shape[1], device=text_BT.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def local_tensors(text: bytes, context: int) -> Iterator[bytes]:
    """Whole lines, as many as fit into `context` bytes: pieces of all lengths."""
    piece = b""
    for line in text.splitlines(keepends=True):
        if len(piece) + len(line) > context:
            yield piece
            piece = b""
        piece += line[:context]
    yield piece


class Source:
    def __init__(self, part: slice, context: int) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[part]
        found = [piece for file in files for piece in local_tensors(file.read_bytes(), context)]
        self.local_tensors = [piece for piece in found if len(piece) > 1]

    def __len__(self) -> int:
        return len(self.local_tensors)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(list(self.local_tensors[index]))


def collate(local_tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    text = nn.utils.rnn.pad_sequence([p[:-1] for p in local_tensors], batch_first=True)
    target = nn.utils.rnn.pad_sequence([p[1:] for p in local_tensors], batch_first=True, padding_value=-100)
    return text, target


def job(
    lr: float = 3e-3, width: int = 128, depth: int = 2, context: int = 64, batch: int = 32, steps: int = 300
) -> oc.Job:
    return oc.Job(
        model=lambda: GPT(width, depth, heads=4, context=context),
        loss=oc.loss.next_token,
        data=lambda: Source(slice(0, -3), context),
        collate=collate,
        optimizer=oc.AdamW(lr=lr, weight_decay=0.1, groups={"*norm*|*.bias": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=20),
        clip=1.0,
        global_batch=batch,
        steps=steps,
        evaluate=oc.Evaluate(lambda: Source(slice(-3, None), context), every=100),
    )

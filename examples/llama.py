"""A small Llama (grouped-query attention, rotary position embedding, SwiGLU): `onecurve run examples/llama.py`.

It is trained on paragraphs of the source code of Python's standard library. Paragraphs differ in length, so batches are
padded, and the loss is averaged over the tokens that are not padding.
"""

import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


def rotate(x_BHTD: Tensor) -> Tensor:
    """Apply rotary position embedding: rotate each pair of features by an angle proportional to the position."""
    T, D = x_BHTD.shape[-2:]
    frequency = 10_000 ** (-torch.arange(0, D, 2, device=x_BHTD.device, dtype=torch.float32) / D)
    angle = torch.outer(torch.arange(T, device=x_BHTD.device, dtype=torch.float32), frequency)
    cos, sin = angle.cos().to(x_BHTD.dtype), angle.sin().to(x_BHTD.dtype)
    even, odd = x_BHTD[..., 0::2], x_BHTD[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = heads, kv_heads, width // heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head_size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head_size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        y = self.attention_norm(x)
        q = self.q(y).view(B, T, self.heads, self.head_size).transpose(1, 2)
        k = self.k(y).view(B, T, self.kv_heads, self.head_size).transpose(1, 2)
        v = self.v(y).view(B, T, self.kv_heads, self.head_size).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(B, T, D))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, kv_heads: int, hidden: int, vocab_size: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, text_BT: Tensor) -> Tensor:
        x = self.embedding(text_BT)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Paragraphs:
    """Paragraphs of the source files of the standard library. `files`: which files, in alphabetical order."""

    def __init__(self, files: slice, context: int) -> None:
        paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[files]
        paragraphs = [paragraph.strip() for path in paths for paragraph in path.read_bytes().split(b"\n\n")]
        self.texts = [paragraph[: context + 1] for paragraph in paragraphs if len(paragraph) > 1]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(list(self.texts[index]))


def collate(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad to the longest paragraph of the batch; the loss ignores targets of -100."""
    text = nn.utils.rnn.pad_sequence([t[:-1] for t in texts], batch_first=True)
    target = nn.utils.rnn.pad_sequence([t[1:] for t in texts], batch_first=True, padding_value=-100)
    return text, target


def job(
    lr: float = 2e-3,
    width: int = 128,
    depth: int = 2,
    heads: int = 4,
    context: int = 128,
    batch: int = 32,
    steps: int = 300,
) -> oc.Job:
    return oc.Job(
        model=lambda: Llama(width, depth, heads, kv_heads=heads // 2, hidden=2 * width),
        loss=oc.loss.next_token,
        data=lambda: Paragraphs(slice(0, -3), context),
        collate=collate,
        optimizer=oc.AdamW(lr=lr, betas=(0.9, 0.95), weight_decay=0.1, groups={"*norm*": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=20, final=0.1),
        clip=1.0,
        global_batch=batch,
        steps=steps,
        evaluate=oc.Evaluate(lambda: Paragraphs(slice(-3, None), context), every=100),
    )

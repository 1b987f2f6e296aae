"""A byte-level GPT, trained on the source code of Python's standard library: `onecurve run examples/gpt.py`.

The code is first written as JSON lines, one chunk per line, to a folder for temporary files.
"""

import json
import platform
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.apply(self._init_weights)
        self.head.weight = self.bytes.weight

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, text_BT: Tensor) -> Tensor:
        x = self.bytes(text_BT) + self.positions(torch.arange(text_BT.shape[1], device=text_BT.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def chunks(text: bytes, context: int) -> Iterator[bytes]:
    """Split a text into chunks of at most `context` bytes: as many lines as fit, where long lines are truncated."""
    chunk = b""
    for line in text.splitlines(keepends=True):
        if len(chunk) + len(line) > context:
            yield chunk
            chunk = b""
        chunk += line[:context]
    yield chunk


FILES = 8


def write_chunks(folder: Path, context: int) -> None:
    """Write the chunks of all source files: those of the last three to `unseen`, all others to `train`."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    for part, chosen in (("train", paths[:-3]), ("unseen", paths[-3:])):
        lines = [json.dumps({"text": chunk.decode("latin-1")}) for path in chosen
                 for chunk in chunks(path.read_bytes(), context) if len(chunk) > 1]  # fmt: skip
        (folder / part).mkdir()
        for number in range(FILES):
            (folder / part / f"{number}.jsonl").write_text("\n".join(lines[number::FILES]))
        oc.index(str(folder / part), processes=1)


def corpus(context: int) -> Path:
    """The folder with the data. Several processes may come here at the same time: the first one to finish counts."""
    folder = Path(tempfile.gettempdir(), f"onecurve-stdlib-{platform.python_version()}-{context}")
    if not folder.exists():
        staging = Path(tempfile.mkdtemp(dir=folder.parent))
        write_chunks(staging, context)
        try:
            staging.rename(folder)
        except OSError:
            shutil.rmtree(staging)
    return folder


def tokens(line: dict[str, Any]) -> Tensor:
    return torch.tensor(list(line["text"].encode("latin-1")))


def collate(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad to the longest chunk of the batch; the loss ignores targets of -100."""
    text = nn.utils.rnn.pad_sequence([t[:-1] for t in texts], batch_first=True)
    target = nn.utils.rnn.pad_sequence([t[1:] for t in texts], batch_first=True, padding_value=-100)
    return text, target


def job(
    lr: float = 3e-3, width: int = 128, depth: int = 2, context: int = 64, batch: int = 32, steps: int = 300
) -> oc.Job:
    return oc.Job(
        model=lambda: GPT(width, depth, heads=4, context=context),
        loss=oc.loss.next_token,
        data=lambda: oc.data.jsonl(f"{corpus(context)}/train").map(tokens),
        collate=collate,
        optimizer=oc.AdamW(lr=lr, weight_decay=0.1, groups={"*norm*|*.bias": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=20),
        clip=1.0,
        global_batch=batch,
        steps=steps,
        evaluate=oc.Evaluate(lambda: oc.data.jsonl(f"{corpus(context)}/unseen").map(tokens), every=100),
    )

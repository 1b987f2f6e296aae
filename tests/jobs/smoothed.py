"""A loss that uses log_softmax directly: cross entropy with hand-written label smoothing."""

import sys
from dataclasses import replace
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

import onecurve as oc

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import gpt


def smoothed(logits: Tensor, target: Tensor) -> oc.Weighted:
    logits, target = logits.flatten(0, 1), target.flatten()
    log_p = F.log_softmax(logits, dim=1)
    not_padding = target != -100
    uniform = -(log_p.mean(1) * not_padding).sum()
    return oc.Weighted(0.9 * F.nll_loss(log_p, target, reduction="sum") + 0.1 * uniform, not_padding.sum())


def job() -> oc.Job:
    return replace(gpt.job(width=16, context=32, batch=8), loss=smoothed)

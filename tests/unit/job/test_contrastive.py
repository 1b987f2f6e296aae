"""Losses with in-batch negatives."""

import pytest
import torch
import torch.nn.functional as F

import onecurve as oc
from onecurve.describe.errors import OnecurveError
from onecurve.job import contrastive


def embeddings() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(10, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))


def test_clip_is_the_mean_of_both_directions() -> None:
    one, other = embeddings()
    logits = F.normalize(one, dim=1) @ F.normalize(other, dim=1).T / 0.1
    labels = torch.arange(10)
    expected = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    torch.testing.assert_close(oc.loss.clip(temperature=0.1)((one, other), None), expected)
    torch.testing.assert_close(oc.loss.clip()((one, other, torch.tensor(10.0).log()), None), expected)
    torch.testing.assert_close(oc.loss.info_nce(0.1)((one, other), None), F.cross_entropy(logits, labels))


def test_a_large_batch_is_computed_in_parts(monkeypatch) -> None:
    results = []
    for rows in (4096, 3):
        monkeypatch.setattr(contrastive, "_ROWS", rows)
        pair = embeddings()
        value = oc.loss.clip()(pair, None)
        results.append((value, *torch.autograd.grad(value, pair)))
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(OnecurveError, match="must return two embeddings of each sample"):
        oc.loss.clip()(torch.ones(3, 4), None)
    with pytest.raises(OnecurveError, match=r"the same shape \[batch, width\]"):
        oc.loss.info_nce()((torch.ones(3, 4), torch.ones(3, 5)), None)
    with pytest.raises(OnecurveError, match="temperature must be above 0"):
        oc.loss.clip(temperature=0)
    with pytest.raises(OnecurveError, match="embed must be a function"):
        oc.loss.whole_batch(embed=3, loss=F.mse_loss)

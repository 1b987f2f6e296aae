"""The loss inside Hugging Face models, on outputs made by hand: which labels it counts, and how that is verified."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import onecurve as oc
from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.job.loss_trial import LossTrial

WORDS = 7
generator = torch.Generator().manual_seed(0)
LOGITS = torch.randn(64, 6, WORDS, generator=generator)
LABELS = torch.where(
    torch.arange(6) < torch.randint(2, 7, (64, 1), generator=generator),
    torch.randint(0, WORDS, (64, 6), generator=generator),
    -100,
)


class CausalLMOutput(OrderedDict):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class MaskedLMOutput(CausalLMOutput):
    pass


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def balance(logits: Tensor) -> Tensor:
    """Like the load-balancing loss of experts: a product of two averages over the batch."""
    return (logits.softmax(-1).mean((0, 1)) * F.one_hot(logits.argmax(-1), WORDS).double().mean((0, 1))).sum()


def read(begin: int, end: int, copies: int = 1) -> MicroBatch:
    samples = torch.arange(begin, end).repeat(copies)
    return MicroBatch({"logits": LOGITS[samples], "labels": LABELS[samples]}, torch.zeros(len(samples)), len(samples))


def next_tokens(micro: MicroBatch, kind: type[CausalLMOutput] = CausalLMOutput) -> CausalLMOutput:
    logits, labels = micro.inputs["logits"], micro.inputs["labels"]
    return kind(loss=mean(logits[:, :-1], labels[:, 1:]), logits=logits)


def all_labels(micro: MicroBatch, kind: type[CausalLMOutput] = MaskedLMOutput) -> CausalLMOutput:
    return kind(loss=mean(micro.inputs["logits"], micro.inputs["labels"]), logits=micro.inputs["logits"])


def with_experts(micro: MicroBatch) -> CausalLMOutput:
    output = next_tokens(micro)
    auxiliary = balance(micro.inputs["logits"])
    output["loss"], output["aux_loss"] = output["loss"] + 0.3 * auxiliary, auxiliary
    return output


def try_loss(infer: Any, loss: Any = oc.loss.hugging_face) -> str:
    first = read(0, 12)
    return LossTrial(infer=infer, read=read).refuse_unsplittable(loss, first)


@pytest.mark.parametrize(
    ("infer", "count"), [(next_tokens, (LABELS[:3, 1:] != -100).sum()), (all_labels, (LABELS[:3] != -100).sum())]
)
def test_the_number_of_labels_depends_on_what_the_model_predicts(infer: Any, count: Tensor) -> None:
    micro = read(0, 3)
    weighted = oc.loss.hugging_face(infer(micro), micro.target, micro.inputs)
    assert weighted.count == count
    torch.testing.assert_close(weighted.sum / weighted.count, infer(micro).loss)
    assert try_loss(infer) == ""


def test_labels_may_be_the_target() -> None:
    micro = read(0, 3)
    from_target = oc.loss.hugging_face(next_tokens(micro), micro.inputs["labels"], micro.inputs["logits"])
    assert from_target == oc.loss.hugging_face(next_tokens(micro), None, micro.inputs)


def test_a_micro_batch_without_labels_adds_nothing() -> None:
    logits = torch.randn(2, 6, WORDS, requires_grad=True)
    labels = torch.full((2, 6), -100)
    weighted = oc.loss.hugging_face(MaskedLMOutput(loss=mean(logits, labels), logits=logits), None, {"labels": labels})
    weighted.sum.backward()
    assert (weighted.sum.item(), weighted.count) == (0.0, 0)
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_class_labels_and_regression_count_samples_and_elements() -> None:
    output = MaskedLMOutput(loss=torch.tensor(2.0), logits=torch.zeros(5, 3))
    assert oc.loss.hugging_face(output, None, {"labels": torch.tensor([0, 1, 2, -100, 1])}).count == 4
    assert oc.loss.hugging_face(output, None, {"labels": torch.zeros(5, 3)}).count == 15


def test_a_mean_over_other_labels_than_the_output_says_is_refused() -> None:
    with pytest.raises(OnecurveError, match=r"should be the mean over next tokens.*the mean over all labels"):
        try_loss(lambda micro: all_labels(micro, CausalLMOutput))
    with pytest.raises(OnecurveError, match=r"should be the mean over all labels.*the mean over next tokens"):
        try_loss(lambda micro: next_tokens(micro, MaskedLMOutput))


def test_a_loss_that_cannot_be_recomputed_is_tested_by_its_parts_and_noted() -> None:
    def doubled(micro: MicroBatch) -> CausalLMOutput:
        output = next_tokens(micro)
        output["loss"] = 2 * output["loss"]
        return output

    assert "could not be verified" in try_loss(doubled)


def test_the_refusal_of_a_scalar_names_this_loss() -> None:
    with pytest.raises(OnecurveError, match=r"not a mean over samples.*loss=onecurve.loss.hugging_face"):
        try_loss(next_tokens, lambda output, _: output.loss)


def test_a_load_balancing_loss_is_refused_unless_it_is_chosen_per_micro_batch() -> None:
    with pytest.raises(OnecurveError, match=r"contains aux_loss.*loss=onecurve.loss.hugging_face_local_auxiliary"):
        try_loss(with_experts)
    note = try_loss(with_experts, oc.loss.hugging_face_local_auxiliary)
    assert "depends on the plan's micro-batch size" in note


def test_an_auxiliary_loss_that_is_more_than_it_says_is_refused() -> None:
    def with_more(micro: MicroBatch) -> CausalLMOutput:
        output = with_experts(micro)
        output["loss"] = output["loss"] + balance(3 * micro.inputs["logits"])
        return output

    with pytest.raises(OnecurveError, match=r"is not the mean over its labels .* × output.aux_loss"):
        try_loss(with_more, oc.loss.hugging_face_local_auxiliary)


def test_missing_labels_or_loss_are_refused_with_the_fix() -> None:
    with pytest.raises(OnecurveError, match="pass labels to the model"):
        oc.loss.hugging_face(CausalLMOutput(logits=LOGITS), 0, {"input_ids": LABELS})
    with pytest.raises(OnecurveError, match="there are no labels"):
        oc.loss.hugging_face(CausalLMOutput(loss=torch.tensor(1.0)), 0, {"input_ids": LABELS})

"""Decisions by values of tensors are noted with their place, and can be answered for the code."""

import threading

import torch
from torch import Tensor

from onecurve.device.decisions import decisions


def decide(x: Tensor) -> str:
    if (x > 0).any():
        return "some"
    return "all" if (x < 0).all().item() else "none"


def test_each_decision_is_noted_with_its_line_and_its_answer() -> None:
    with decisions() as found:
        assert decide(torch.ones(2)) == "some"
        assert decide(-torch.ones(2)) == "all"
        assert torch.ones(2).sum().item() == 2
        assert not bool(torch.zeros(()))
    line = decide.__code__.co_firstlineno
    mine = {(int(place.rpartition(":")[2]) - line, decided) for place, decided in found}
    assert {(1, True), (1, False), (3, True)} < mine
    assert len(found) == 4
    assert all(place.startswith(__file__) for place, _ in found)
    decide(torch.ones(2))
    assert len(found) == 4
    with decisions():
        replaced = vars(Tensor)["__bool__"]
    assert vars(Tensor)["__bool__"] is replaced  # not once per step: Python would stop caching


def test_decisions_can_be_answered_for_the_code() -> None:
    with decisions(forced=False):
        assert decide(torch.ones(2)) == "none"
        with decisions(forced=True) as inner:
            assert decide(-torch.ones(2)) == "some"
        assert decide(torch.ones(2)) == "none"
    assert {decided for _, decided in inner} == {True}
    assert decide(torch.ones(2)) == "some"


def test_a_loop_that_waits_for_the_other_answer_ends() -> None:
    count = torch.zeros(())
    with decisions(forced=True):
        while count < 3:
            count += 1
    assert count < 1000


def test_other_threads_decide_by_their_values() -> None:
    answers: list[str] = []
    with decisions(forced=True) as found:
        thread = threading.Thread(target=lambda: answers.append(decide(-torch.ones(2))))
        thread.start()
        thread.join()
    assert answers == ["all"]
    assert not found

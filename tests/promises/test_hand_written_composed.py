"""Idioms that are put together at random train what a hand-written loop trains, or are refused."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hand_loops import LaboratoryProcess, Outcome, cases_of, unexpected

_SETTINGS = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
_SEEDS = st.integers(0, 10**6)
"""A composition is a function of its seed: what it has drawn can be trained again by name."""


@pytest.fixture(scope="module")
def laboratory() -> Iterator[LaboratoryProcess]:
    process = LaboratoryProcess()
    yield process
    process.close()


def _trained(laboratory: LaboratoryProcess, seed: int, plan: str) -> str:
    name = f"seed{seed}"
    outcome: Outcome = laboratory.outcome("composed", name, plan)
    return unexpected(cases_of("composed")[name], plan, outcome)


@settings(_SETTINGS, max_examples=4)
@given(_SEEDS)
def test_a_composition_trains_the_same_in_two_rounds(laboratory: LaboratoryProcess, seed: int) -> None:
    assert not _trained(laboratory, seed, "accumulation")


@pytest.mark.slow
@settings(_SETTINGS, max_examples=60)
@given(_SEEDS)
def test_a_composition_trains_the_same_on_ranks(laboratory: LaboratoryProcess, seed: int) -> None:
    plan = random.Random(seed).choice(["mb", "accumulation", "replicate", "shard", "tensor", "pipeline"])
    assert not _trained(laboratory, seed, plan)

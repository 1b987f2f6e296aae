import pytest

from onecurve.describe.engine import Engine
from onecurve.describe.plan import Plan
from onecurve.estimate.engine_defaults import engine_of


def test_the_default_engine_is_adam_in_fp32() -> None:
    assert engine_of(Plan.parse("mb8"), optimizer_tensors=2) == Engine()


@pytest.mark.parametrize(
    ("plan", "tensors", "gradient", "all_gather", "update", "weight", "state"),
    [
        ("mb8 fp32", 2, 4, 4, 28, 4, 8),  # reads weight, gradient and two moments, writes all but the gradient
        ("mb8 fp32", 0, 4, 4, 12, 4, 0),
        ("mb8 bf16", 1, 4, 2, 20, 4, 4),
        ("mb8 fp16", 1, 4, 2, 20, 4, 4),
        ("mb8 fp64", 1, 8, 8, 40, 8, 8),
        ("replicate2 mb8 compress=bf16", 2, 2, 4, 28, 4, 8),
        ("replicate2 mb8 fp64 compress=fp16", 2, 2, 8, 56, 8, 16),
    ],
)
def test_bytes_per_element(
    plan: str, tensors: int, gradient: int, all_gather: int, update: int, weight: int, state: int
) -> None:
    engine = engine_of(Plan.parse(plan), tensors)
    assert (engine.gradient_bytes, engine.all_gather_bytes, engine.update_bytes) == (gradient, all_gather, update)
    assert (engine.weight_bytes, engine.stored_gradient_bytes, engine.optimizer_state_bytes) == (weight, weight, state)
    assert (engine.overlaps, engine.keeps_gathered_copy) == (True, True)
    assert (engine.shards_optimizer_state, engine.recomputes_attention) == (False, False)

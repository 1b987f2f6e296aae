"""The train state is saved as JSON and read back, and a damaged one is refused."""

import pytest

from onecurve.describe.convert import from_json, from_plain, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.train.state import BestState, TrainState


@pytest.mark.parametrize(
    "state",
    [
        TrainState(),
        TrainState(
            step=7,
            position=56,
            loss=0.125,
            loss_scale=2.0**16,
            good_steps=3,
            best=BestState("auc", "higher", 0.75, 5, evaluations_since=1),
        ),
    ],
)
def test_the_state_round_trips(state: TrainState) -> None:
    assert from_json(TrainState, to_json(state).encode(), "checkpoint") == state


def test_a_training_starts_at_the_first_sample_with_loss_scale_1() -> None:
    assert (TrainState().step, TrainState().position, TrainState().loss_scale) == (0, 0, 1.0)


@pytest.mark.parametrize("field", ["step", "position"])
@pytest.mark.parametrize("value", [-1, (1 << 60) + 1])
def test_a_count_out_of_range_is_refused(field: str, value: int) -> None:
    with pytest.raises(OnecurveError, match=rf"{field} = {value}"):
        TrainState(**{field: value})


@pytest.mark.parametrize(
    ("plain", "message"), [({"steps": 3}, "unknown key 'steps'"), ({"step": "3"}, "step: expected")]
)
def test_a_damaged_state_names_the_checkpoint(plain: dict[str, object], message: str) -> None:
    with pytest.raises(OnecurveError, match=f"step-7: .*{message}"):
        from_plain(TrainState, plain, "step-7")

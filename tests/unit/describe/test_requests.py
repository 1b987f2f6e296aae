import pytest

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.plan import Plan
from onecurve.describe.requests import CheckRequest, ProbeRequest, RunRequest

RUN = RunRequest(script="train.py", arguments=("width=16",), out="runs", fresh=True, quiet=False)
CHECK = CheckRequest(script="train.py", arguments=(), plans=(Plan(),), ranks=2, steps=3, precision="fp64", quiet=True)
PROBE = ProbeRequest(quiet=True)


@pytest.mark.parametrize("request_sent", [RUN, CHECK, PROBE], ids=lambda request: type(request).__name__)
def test_a_request_reaches_the_ranks_unchanged(request_sent: object) -> None:
    assert from_json(type(request_sent), to_json(request_sent).encode(), "request") == request_sent


def test_debug_output_is_off_unless_it_is_asked_for() -> None:
    assert (RUN.verbose, CHECK.verbose) == (False, False)


@pytest.mark.parametrize("request_sent", [RUN, CHECK, PROBE], ids=lambda request: type(request).__name__)
def test_fields_are_given_by_name(request_sent: object) -> None:
    with pytest.raises(TypeError, match="positional"):
        type(request_sent)(*vars(request_sent).values())

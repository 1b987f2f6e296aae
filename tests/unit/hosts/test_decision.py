"""What is done when a generation could not end."""

import signal

import pytest

from onecurve.describe.assignment import RankFailure
from onecurve.hosts.decision import FailureFacts, decide

KILLED = RankFailure(rank=1, time=1.0, exit_status=-signal.SIGKILL)
ABORTED = RankFailure(rank=2, time=1.0, exit_status=-signal.SIGABRT)
DISCONNECTED = RankFailure(rank=0, time=1.0, text="gloo: connection closed", lost_connection=True)
USER_ERROR = RankFailure(rank=1, time=1.0, text="ValueError: mine")
REFUSED = RankFailure(rank=0, time=1.0, text="lr must be positive", is_input_error=True)


@pytest.mark.parametrize(
    ("failures", "changes", "action"),
    [
        ([KILLED], {}, "continue"),
        ([KILLED, DISCONNECTED], {}, "continue"),
        ([DISCONNECTED], {}, "continue"),
        ([ABORTED, DISCONNECTED], {}, "continue"),
        ([USER_ERROR], {}, "give up"),
        ([DISCONNECTED, USER_ERROR], {}, "give up"),
        ([REFUSED], {}, "give up"),
        ([KILLED], {"failures_at_step": 2}, "continue"),
        ([KILLED], {"failures_at_step": 3}, "give up"),
        ([KILLED], {"is_stopping": True}, "give up"),
        ([DISCONNECTED], {"hosts": 2, "lost_hosts": 1, "least_hosts": 2}, "shrink"),
        ([DISCONNECTED], {"hosts": 2, "lost_hosts": 1, "least_hosts": 3}, "wait"),
        ([], {"hosts": 1, "lost_hosts": 2, "least_hosts": 1}, "shrink"),
        ([USER_ERROR], {"hosts": 1, "lost_hosts": 2, "least_hosts": 3}, "give up"),
    ],
)
def test_decisions(failures, changes, action) -> None:
    facts = {"hosts": 1, "lost_hosts": 0, "least_hosts": 1, "failures_at_step": 1, **changes}
    assert decide(FailureFacts(failures=tuple(failures), **facts)).action == action


def test_a_run_that_is_given_up_for_no_error_of_its_own_says_why() -> None:
    common = {"failures": (KILLED,), "hosts": 1, "lost_hosts": 0, "least_hosts": 1}
    assert "3 times at the same step" in decide(FailureFacts(**common, failures_at_step=3)).reason
    assert "stopped" in decide(FailureFacts(**common, failures_at_step=1, is_stopping=True)).reason

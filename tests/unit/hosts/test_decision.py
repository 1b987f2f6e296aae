"""What is done when a generation could not end."""

import signal

import pytest

from onecurve.describe.assignment import RankFailure
from onecurve.hosts.decision import Facts, decide

KILLED = RankFailure(rank=1, time=1.0, exit_status=-signal.SIGKILL)
ABORTED = RankFailure(rank=2, time=1.0, exit_status=-signal.SIGABRT)
DISCONNECTED = RankFailure(rank=0, time=1.0, text="gloo: connection closed", lost_connection=True)
USER_ERROR = RankFailure(rank=1, time=1.0, text="ValueError: mine")
HUNG = RankFailure(rank=1, time=1.0, text="no progress, in train.py:3 in forward", is_hang=True)
OUT_OF_MEMORY = RankFailure(rank=1, time=1.0, text="OutOfMemoryError", is_out_of_memory=True)
OUT_OF_MEMORY_KILLED = RankFailure(rank=1, time=1.0, exit_status=-signal.SIGKILL, is_out_of_memory=True)
CORRUPTED = RankFailure(rank=1, time=1.0, text="its weights are not those of the others", is_corrupted=True)
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
        ([HUNG, DISCONNECTED], {}, "continue"),
        ([OUT_OF_MEMORY], {"has_smaller_plan": True}, "smaller footprint"),
        ([OUT_OF_MEMORY_KILLED, DISCONNECTED], {"has_smaller_plan": True}, "smaller footprint"),
        ([OUT_OF_MEMORY], {"has_smaller_plan": True, "failures_at_step": 3}, "smaller footprint"),
        ([OUT_OF_MEMORY], {}, "give up"),
        ([OUT_OF_MEMORY_KILLED], {}, "give up"),
        ([OUT_OF_MEMORY, USER_ERROR], {"has_smaller_plan": True}, "give up"),
        ([OUT_OF_MEMORY], {"has_smaller_plan": True, "hosts": 1, "least_hosts": 2, "lost_hosts": 1}, "wait"),
        ([CORRUPTED, DISCONNECTED], {"corruptions": 1}, "continue"),
        ([CORRUPTED, DISCONNECTED], {"corruptions": 3}, "give up"),
        ([DISCONNECTED], {"asked": "grow"}, "grow"),
        ([DISCONNECTED], {"asked": "rebalance"}, "rebalance"),
        ([DISCONNECTED], {"asked": "grow", "hosts": 2, "lost_hosts": 1}, "shrink"),
        ([USER_ERROR], {"asked": "grow"}, "give up"),
    ],
)
def test_decisions(failures, changes, action) -> None:
    facts = {"hosts": 1, "lost_hosts": 0, "least_hosts": 1, "failures_at_step": 1, **changes}
    assert decide(Facts(failures=tuple(failures), **facts)).action == action


def test_a_run_that_is_given_up_for_no_error_of_its_own_says_why() -> None:
    common = {"failures": (KILLED,), "hosts": 1, "lost_hosts": 0, "least_hosts": 1}
    assert "3 times at the same step" in decide(Facts(**common, failures_at_step=3)).reason
    assert "stopped" in decide(Facts(**common, failures_at_step=1, is_stopping=True)).reason

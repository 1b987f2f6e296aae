"""Errors of the agreement between hosts."""

from onecurve.describe.errors import OnecurveError


class CoordinationError(OnecurveError):
    """A key, a value or a request that the coordination service refuses."""


class LeaseLostError(CoordinationError):
    """The lease that a key should belong to has expired or was closed."""


class UnreachableError(CoordinationError):
    """The coordination service did not answer in time. A write that was under way may or may not have happened."""


class JobKeyError(CoordinationError):
    """The other side of a connection does not know the job's key."""

"""What goes wrong for reasons a user can mend. The message names the thing, the value, the limit and the mend."""


class OnecurveError(Exception):
    """An error of the user's input or environment: shown as its message alone, without a traceback."""


class UserCodeError(OnecurveError):
    """The user's own code (a dataset, a loss, a constructor) raised: shown with the traceback of the cause."""

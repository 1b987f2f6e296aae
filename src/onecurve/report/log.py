"""The package's log on a terminal: `--verbose`."""

import logging

_LOGGER = logging.getLogger("onecurve")


def log_to_stderr() -> None:
    """Show the package's log records. Other libraries' loggers, and the root logger, are left alone."""
    if is_verbose():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False


def is_verbose() -> bool:
    """True if details are logged; a launcher passes this on to its ranks."""
    return _LOGGER.isEnabledFor(logging.INFO)

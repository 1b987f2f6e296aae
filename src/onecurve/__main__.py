"""`python -m onecurve` is the same as the command `onecurve`."""

from typing import NoReturn

from onecurve.device.environment import fix_hash_seed


def command() -> NoReturn:
    """Run a command as a process of its own, with a hash seed that is the same at every start."""
    fix_hash_seed()
    from onecurve.cli.main import command as run_command

    run_command()


if __name__ == "__main__":
    command()

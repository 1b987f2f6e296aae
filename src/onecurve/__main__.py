"""`python -m onecurve` is the same as the command `onecurve`."""

from onecurve.cli.main import command

command()

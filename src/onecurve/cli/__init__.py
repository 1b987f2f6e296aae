"""The command line: arguments.py reads the arguments, commands.py calls a verb and prints, main.py reports errors."""

from onecurve.cli.main import main as main

"""The name of the program that launchers start as ranks."""

PROGRAM = "onecurve.verbs.rank"

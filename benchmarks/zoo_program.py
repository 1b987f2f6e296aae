"""The rank program of zoo.py: onecurve's own, forked from a process that has also imported the model libraries."""

import importlib
import os
import warnings
from contextlib import suppress

from onecurve.launch.message_socket import MessageSocket
from onecurve.verbs import rank

LIBRARIES = ("transformers", "torchvision", "timm", "diffusers", "peft", "torch_geometric")


def preload(verb: str, request: str, _: bool) -> None:
    warnings.simplefilter("ignore")
    rank.preload(verb, request, False)
    for library in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(library)


def main(verb: str, request: str, socket: MessageSocket) -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # models print
    return rank.main(verb, request, socket)

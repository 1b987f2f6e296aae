"""oc.predict: the outputs of a trained model, computed on all ranks."""

import pickle
import re
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.verbs.evaluate import ask_ranks, inference_request

_NAME_OF_THE_PROGRAM = re.compile(rb"c__main__\n([^\n]+)\n")
"""How a pickle refers to a class or function of the main program."""


def predict(
    run: str | Path,
    data: Sequence[Any],
    *,
    best: bool = False,
    plan: str | Plan | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Any]:
    """Return what a run's model computes for each sample of a dataset. The ranks divide the samples among themselves.

    Args:
        run: The run's folder, for example `"runs/gpt"`.
        data: A dataset with samples like those that the job trains on, targets included. It is sent to the ranks, so
            `pickle` must be able to write it.
        best: Use the checkpoint of the best evaluation instead of the newest. Default: False.
        plan: How to split the model: a `onecurve.Plan`, its text, or the path of a plan.toml. Default: None, the run's.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        An output per sample, in their order, on the CPU.

    Example::

        outputs = oc.predict("runs/first", [(torch.zeros(3), torch.zeros(1))])
        print(torch.stack(outputs))
    """
    import torch

    request = inference_request(Path(run), (), best, plan)
    with tempfile.TemporaryDirectory(prefix="onecurve-predict-") as folder:
        file = Path(folder) / "data"
        try:
            torch.save(data, file)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise OnecurveError(
                f"predict: the data cannot be sent to the ranks ({error}); define its classes at the top level of a "
                "module, or give a list of samples"
            ) from None
        _refuse_names_of_the_program(file)
        ask_ranks(replace(request, data=str(file)), "predict", say)
        outputs: dict[int, Any] = {}
        for rank in range(request.plan.mesh.size):
            outputs |= torch.load(f"{file}.{rank}", weights_only=False)
    return [outputs[index] for index in range(len(data))]


def _refuse_names_of_the_program(file: Path) -> None:
    """Refuse data that refers to classes or functions of the program that runs."""
    with zipfile.ZipFile(file) as archive:
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        found = _NAME_OF_THE_PROGRAM.search(archive.read(pickled))
    if found is not None:
        raise OnecurveError(
            f"predict: {found[1].decode()} is defined in the program that runs, which the ranks, as other processes, "
            "cannot import; move it into a module, or give a list of samples"
        )

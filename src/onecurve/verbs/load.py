"""oc.load: the trained model of a run."""

import warnings
from pathlib import Path

import torch
from torch import nn

from onecurve.checkpoint.export import lazy_tensors_of
from onecurve.checkpoint.pretrained import load_weights
from onecurve.describe.errors import OnecurveError
from onecurve.device.local_tensor import local_tensor_of
from onecurve.job.embedding import tables_of
from onecurve.job.script import load_job
from onecurve.model.adapters import frozen_base, stored_names
from onecurve.model.recorder import build_real
from onecurve.runtime.assembly import first_names
from onecurve.verbs.job_code import changed_code, code_hashes
from onecurve.verbs.run_checkpoint import find_checkpoint, origin_of


def load(run: str | Path, *, best: bool = False, device: str | torch.device = "cpu") -> nn.Module:
    """Return the model of a run with the weights of its newest checkpoint, in evaluation mode.

    The run's script is executed to build the model.

    Args:
        run: The run's folder, for example `"runs/gpt"`.
        best: Use the checkpoint of the best evaluation instead of the newest. Default: False.
        device: Where the model is to be. Default: `"cpu"`.

    Returns:
        The module that the job's `model` builds.

    Example::

        model = oc.load("runs/first")
        with torch.inference_mode():
            print(model(torch.zeros(1, 3)))
    """
    folder = Path(run)
    checkpoint = find_checkpoint(folder, best)
    origin = origin_of(folder)
    job = load_job(Path(origin.script), origin.arguments)
    if changed := changed_code(origin.code, code_hashes(job)):
        warnings.warn(f"{folder}: {changed}; the model has the new one", stacklevel=2)
    model = build_real(job.model, job.seed)
    if tables := tables_of(model):
        raise OnecurveError(
            f"{folder}: the rows of its embedding tables ({', '.join(tables)}) are not part of the module; use "
            "onecurve.predict or onecurve evaluate"
        )
    saved, filled = lazy_tensors_of(checkpoint), set[int]()
    with torch.no_grad():
        tensors = {**dict(model.named_parameters()), **model.state_dict(keep_vars=True)}
        for name, tensor in tensors.items():
            if name in saved:
                _refuse_another_shape(name, tensor, saved[name].shape, folder)
                tensor.copy_(saved[name].read())
                filled.add(id(tensor))
    base = frozen_base(model)
    if base and job.weights is not None:
        local = [local_tensor_of(name, tensor, True) for name, tensor in tensors.items() if name in base]
        load_weights(Path(job.weights), local, stored_names(model, first_names(model)))
    missing = [name for name, tensor in tensors.items() if id(tensor) not in filled and name not in base]
    if missing:
        raise OnecurveError(
            f"{checkpoint.where}: it has no {missing[0]}; the run's script has changed: use the one of the run"
        )
    return model.to(device).eval()


def _refuse_another_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...], folder: Path) -> None:
    if tuple(tensor.shape) != shape:
        raise OnecurveError(
            f"{folder}: {name} has the shape {list(shape)} in the checkpoint and {list(tensor.shape)} in the model; "
            "the run's script has changed: use the one of the run"
        )

"""The weights of a checkpoint, with which a check begins instead of those that the constructor makes."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from onecurve.apply.base_part import BasePart
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.location import open_store
from onecurve.checkpoint.pretrained import load_weights
from onecurve.data.training_data import TrainingData
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.device.local_tensor import LocalTensor, local_tensor_of
from onecurve.job.embedding import tables_of
from onecurve.job.job import Job
from onecurve.model.adapters import frozen_base, stored_names
from onecurve.runtime.assembly import first_names
from onecurve.runtime.fingerprint import fingerprint
from onecurve.runtime.model_tensors import saved_tensors

_OF_WEIGHTS = ("model", "base")
"""Fields of a job's fingerprint by which its weights are those of another model."""


class StartWeights:
    """The parameters and buffers of one checkpoint; with adapters, their base from the job's `weights` too."""

    def __init__(self, location: str, name: str, job: Job, model: nn.Module, data: TrainingData) -> None:
        """`location`: where the run's checkpoints are; `name`: of the checkpoint; `model`: as the job builds it."""
        self._checkpoint = Checkpoint(open_store(location), name)
        if tables := tables_of(model):
            raise OnecurveError(
                f"check: --at is not possible with embedding tables ({', '.join(tables)}): the rows of a checkpoint "
                "are not loaded; leave --at out"
            )
        saved, now = self._checkpoint.root.job, fingerprint(job, model, data)
        for field in _OF_WEIGHTS:
            if saved.get(field) != now.get(field):
                raise OnecurveError(
                    f"{self._checkpoint.where}: it has the weights of another {field} (it was {saved.get(field)}, is "
                    f"{now.get(field)}); check the script and the arguments of the run"
                )
        self._base, self._names = job.weights, stored_names(model, first_names(model))

    @property
    def text(self) -> str:
        """Which weights they are."""
        return f"step {self._checkpoint.root.point.step} of {self._checkpoint.where}"

    def load_module(self, module: nn.Module) -> None:
        """Fill a whole model."""
        saved = module.state_dict(keep_vars=True)
        named = [*module.named_parameters(), *((name, each) for name, each in module.named_buffers() if name in saved)]
        base = frozen_base(module)
        tensors = [local_tensor_of(name, tensor, True) for name, tensor in named]
        self._checkpoint.load([each for each in tensors if each.name not in base], Mesh(), 0)
        self._load_base([each for each in tensors if each.name in base])

    def load_part(self, part: BasePart, mesh: Mesh, rank: int) -> None:
        """Fill this rank's part of the model."""
        self._checkpoint.load(saved_tensors(part), mesh, rank)
        self._load_base([each for each in part.parameters if each.name in part.unsaved])
        part.drop_gathered()

    def _load_base(self, tensors: Sequence[LocalTensor]) -> None:
        if tensors and self._base is not None:
            load_weights(Path(self._base), tensors, self._names)

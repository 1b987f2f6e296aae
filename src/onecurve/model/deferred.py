"""The model before any rank holds it: recorded on fake tensors where its constructor allows, otherwise built whole."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.model.recorder import InitRecorder, build_real, record


@dataclass(frozen=True)
class DeferredModel:
    module: nn.Module
    recorder: InitRecorder | None
    """None where the module is real already."""
    warning: str = ""

    def forward(self, micro: MicroBatch) -> object:
        """Run the model on fake tensors: nothing is computed, but what it calls can be seen. The blueprint is spent."""
        if self.recorder is None:
            raise OnecurveError("a model that was built whole has no fake forward")
        with self.recorder.mode, DataDependentFallback():
            return self.fake_batch(micro).forward(self.module)

    def fake_batch(self, micro: MicroBatch) -> MicroBatch:
        """The micro-batch as the model on fake tensors takes it."""
        inputs, target = pytree.tree_map(self._fake, (micro.inputs, micro.target))
        return MicroBatch(inputs, target, micro.samples)

    def _fake(self, leaf: object) -> object:
        assert self.recorder is not None
        if not isinstance(leaf, Tensor) or isinstance(leaf, FakeTensor):
            return leaf
        return self.recorder.mode.from_tensor(leaf)

    @property
    def parameter_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.module.parameters())

    @property
    def trainable_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.module.parameters() if parameter.requires_grad)


def defer_init(build: Callable[[], nn.Module], seed: int) -> DeferredModel:
    """Run the user's constructor. A blueprint is used up by the part that is made of it."""
    try:
        return DeferredModel(*record(build, seed))
    except OnecurveError:
        raise
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        reason = f"{type(error).__name__}: {first_line}"
    # Either the constructor does what fake tensors cannot follow, or it is wrong: building it for real will tell.
    module = build_real(build, seed)
    return DeferredModel(
        module, None, f"the model's constructor could not be recorded ({reason}); every rank builds it whole"
    )

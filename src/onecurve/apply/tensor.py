"""The axis `tensor`: parameters cut as the plan's layouts say, the model's own code unchanged.

Parameters are distributed tensors, so the model computes in global shapes and DTensor's propagation keeps cut what is
cut. What it must not choose for itself is when partial sums are reduced: it would carry them into norms and residual
sums and reduce them again in backward. So there are two gates, at the modules that hold cut parameters. *Enter*: the
activation is made whole; in backward its gradient is summed once. *Leave*: partial sums are reduced at once; in
backward the gradient is made whole. Between leaving and entering lies the stream: whole on every rank, or cut along
the sequence.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils.hooks import RemovableHandle

from onecurve.apply.dtensor_ops import register_dtensor_ops
from onecurve.apply.tensor_parallel_rng import TensorParallelRNG
from onecurve.describe.errors import OnecurveError
from onecurve.describe.layout import Layout

_SEQUENCE = 1


class TensorAxis:
    """Cuts parameters, and sets up the gates."""

    def __init__(self, mesh: DeviceMesh, layouts: Mapping[str, str], sequence: bool) -> None:
        register_dtensor_ops()
        self._mesh = mesh
        self._layouts = {pattern: Layout.parse(text) for pattern, text in layouts.items()}
        self._sequence = sequence
        self._random = TensorParallelRNG(mesh)
        self._entered: tuple[DTensor, DTensor] | None = None

    def split(self, module: nn.Module, prefix: str = "", left_out: Iterable[nn.Module] = ()) -> None:
        """Distribute the module's real parameters, in place, ties kept; what is distributed already is passed over."""
        made: dict[int, nn.Parameter] = {}
        for name, each in module.named_modules(set(left_out), prefix=prefix):
            for leaf, parameter in each._parameters.items():
                if parameter is None or isinstance(parameter, DTensor):
                    continue
                if id(parameter) not in made:
                    made[id(parameter)] = self._distributed(f"{name}.{leaf}" if name else leaf, parameter)
                each._parameters[leaf] = made[id(parameter)]

    def set_gates(self, module: nn.Module) -> list[RemovableHandle]:
        """After all is split."""
        handles = []
        for each in module.modules():
            own = [value for value in each._parameters.values() if isinstance(value, DTensor)]
            if not all(_along(value).is_replicate() for value in own):
                handles.append(each.register_forward_pre_hook(self._enter_arguments))
                handles.append(each.register_forward_hook(self._leave_output))
        return handles

    @contextmanager
    def temporarily_split(self, module: nn.Module, left_out: Iterable[nn.Module] = ()) -> Iterator[None]:
        """For a trial: the module split and run so, and then as it was before. `left_out`: parts that will not run."""
        before = [(each, dict(each._parameters)) for each in module.modules()]
        handles = []
        try:
            self.split(module, left_out=left_out)
            handles = self.set_gates(module)
            with self.running():
                yield
        finally:
            for handle in handles:
                handle.remove()
            for each, parameters in before:
                each._parameters.update(parameters)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around forward, loss and backward: plain tensors that the model makes are the same on all ranks."""
        with implicit_replication(), self._random:
            try:
                yield
            finally:
                self._entered = None

    def to_send(self, tensor: Tensor) -> Tensor:
        """What another stage needs of an activation: the part that lies here between the gates."""
        if not isinstance(tensor, DTensor):
            tensor = DTensor.from_local(tensor, self._mesh, [Replicate()], run_check=False)
        between = [self._stream(tensor)]
        return tensor.redistribute(placements=between).to_local(grad_placements=between)

    def received(self, local: Tensor, whole: Tensor) -> Tensor:
        """What was sent so; `whole` is something of the whole's shape."""
        return DTensor.from_local(local, self._mesh, [self._stream(whole)], run_check=False)

    def sent_shape(self, whole: Tensor) -> tuple[int, ...]:
        shape = list(whole.shape)
        if self._stream(whole).is_shard():
            shape[_SEQUENCE] //= self._mesh.size()
        return tuple(shape)

    def _distributed(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        layout = next((each for pattern, each in self._layouts.items() if fnmatchcase(name, pattern)), None)
        value, degree, place = parameter.detach(), self._mesh.size(), self._mesh.get_local_rank()
        placement: Placement = Replicate()
        if layout is not None:
            if not layout.divides(tuple(value.shape), degree):
                raise OnecurveError(
                    f"layout: {name} of shape {list(value.shape)} cannot be cut by '{layout}' over {degree} tensor "
                    "ranks; change its layout in the plan, or the axis"
                )
            dim = layout.dim
            runs = layout.runs(value.shape[dim], place, degree)
            value = torch.cat([value.narrow(dim, begin, end - begin) for begin, end in runs], dim)
            placement = Shard(dim) if layout.parts == 1 else _StridedShard(dim, split_factor=layout.parts)
        spec = DTensorSpec(
            self._mesh,
            (placement,),
            tensor_meta=TensorMeta(parameter.shape, parameter.stride(), parameter.dtype),
            use_strided_shard_as_shard_order=False,  # parts are meant, not the order of two shardings
        )
        distributed = DTensor(value, spec, requires_grad=False)  # type: ignore[no-untyped-call]
        return nn.Parameter(distributed, requires_grad=parameter.requires_grad)

    def _stream(self, tensor: Tensor) -> Placement:
        """What an activation is between the gates. A sequence that does not divide evenly stays whole."""
        cut = self._sequence and tensor.dim() > 2 and tensor.shape[_SEQUENCE] % self._mesh.size() == 0
        return Shard(_SEQUENCE) if cut else Replicate()

    def _enter_arguments(self, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._enter(each) for each in arguments)

    def _enter(self, value: Any) -> Any:
        if (
            not isinstance(value, DTensor)
            or not value.is_floating_point()
            or value.placements[0] != self._stream(value)
        ):
            return value
        # q, k and v are made of the same activation: it is gathered, and its gradient summed, once for all of them.
        if self._entered is None or self._entered[0] is not value:
            self._entered = value, _Gate.apply(value, Replicate(), self._stream(value))  # type: ignore[no-untyped-call]
        return self._entered[1]

    def _leave_output(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, DTensor) or not output.placements[0].is_partial():
            return output
        return _Gate.apply(output, self._stream(output), Replicate())  # type: ignore[no-untyped-call]


class _Gate(torch.autograd.Function):
    """Redistributes the activation one way and its gradient another."""

    @staticmethod
    def forward(ctx: Any, value: DTensor, there: Placement, back: Placement) -> Tensor:
        ctx.back = back
        return value.redistribute(placements=[there]).view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[DTensor, None, None]:
        return gradient.redistribute(placements=[ctx.back]), None, None


def _along(parameter: Any) -> Placement:
    """The placement along the tensor axis, which fully_shard keeps last."""
    placement: Placement = parameter.placements[-1]
    return placement


def full_tensor(value: Any) -> Any:
    """A distributed tensor as an ordinary one, whole; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value

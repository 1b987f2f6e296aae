"""The axis `tensor`: parameters are split as the plan's layouts say; the model's own code stays unchanged.

Parameters become DTensors, so the model computes with global shapes and DTensor propagates how results are sharded. One
decision must not be left to DTensor: when partial sums are reduced. It would carry them into norms and residual
additions, and reduce them again in backward. Redistribution hooks therefore surround every module that owns split
parameters:

- Input hook: the input is all-gathered; in backward its gradient is reduced once.
- Output hook: partial sums are reduced at once; in backward the gradient is all-gathered.

Between an output hook and the next input hook, activations form the *residual stream*. It is replicated, or sharded
along the sequence dimension (sequence parallelism).
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
from onecurve.device.step_clock import step_clock

_SEQUENCE_DIM = 1
_ADAPTIVE_POOLING = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
"""Modules that set the strides of their output, which DTensor does not allow, if their input is channels-last."""


class TensorAxis:
    """Splits parameters along the axis `tensor` and registers the redistribution hooks."""

    def __init__(self, mesh: DeviceMesh, layouts: Mapping[str, str], sequence: bool) -> None:
        """`layouts`: parameter name pattern → layout text; `sequence`: shard the residual stream along the sequence."""
        register_dtensor_ops()
        self._mesh = mesh
        self._layouts = {pattern: Layout.parse(text) for pattern, text in layouts.items()}
        self._sequence = sequence
        self._rng = TensorParallelRNG(mesh)
        self._last_gathered: tuple[DTensor, DTensor] | None = None

    def split(self, module: nn.Module, prefix: str = "", excluded: Iterable[nn.Module] = ()) -> None:
        """Replace the module's plain parameters by DTensors, in place. Ties are preserved; DTensors are skipped.

        `prefix`: the module's name in the model, because layouts match full names. `excluded`: submodules to skip.
        """
        distributed: dict[int, nn.Parameter] = {}
        for name, submodule in module.named_modules(set(excluded), prefix=prefix):
            for leaf, parameter in submodule._parameters.items():
                if parameter is None or isinstance(parameter, DTensor):
                    continue
                if id(parameter) not in distributed:
                    distributed[id(parameter)] = self._distribute(f"{name}.{leaf}" if name else leaf, parameter)
                submodule._parameters[leaf] = distributed[id(parameter)]

    def register_redistribution_hooks(self, module: nn.Module) -> list[RemovableHandle]:
        """Register the hooks on every module that owns split parameters. Call this after all calls of `split`."""
        handles = []
        for submodule in module.modules():
            parameters = [value for value in submodule._parameters.values() if isinstance(value, DTensor)]
            if not all(_tensor_placement(parameter).is_replicate() for parameter in parameters):
                handles.append(submodule.register_forward_pre_hook(self._gather_inputs))
                handles.append(submodule.register_forward_hook(self._reduce_output))
            elif isinstance(submodule, _ADAPTIVE_POOLING):
                handles.append(submodule.register_forward_pre_hook(_make_contiguous))
        return handles

    @contextmanager
    def temporarily_split(self, module: nn.Module, excluded: Iterable[nn.Module] = ()) -> Iterator[None]:
        """A context for trial runs, in which the module is split; afterwards it is as before. `excluded`: submodules
        that are not run and stay unsplit."""
        before = [(submodule, dict(submodule._parameters)) for submodule in module.modules()]
        handles = []
        try:
            self.split(module, excluded=excluded)
            handles = self.register_redistribution_hooks(module)
            with self.active():
                yield
        finally:
            for handle in handles:
                handle.remove()
            for submodule, parameters in before:
                submodule._parameters.update(parameters)

    @contextmanager
    def active(self) -> Iterator[None]:
        """The context for forward, loss and backward: plain tensors that the model creates count as replicated."""
        with implicit_replication(), self._rng:
            try:
                yield
            finally:
                self._last_gathered = None

    def to_local_for_send(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of an activation of the residual stream, to be sent to another pipeline stage."""
        if not isinstance(tensor, DTensor):
            tensor = DTensor.from_local(tensor, self._mesh, [Replicate()], run_check=False)
        placements = [self._residual_placement(tensor)]
        return tensor.redistribute(placements=placements).to_local(grad_placements=placements)

    def from_received(self, local: Tensor, like: Tensor) -> Tensor:
        """Return the DTensor of which another stage sent the part `local`; `like` has the full shape."""
        return DTensor.from_local(local, self._mesh, [self._residual_placement(like)], run_check=False)

    def sent_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of what `to_local_for_send` returns for a tensor of this full shape."""
        shape = list(tensor.shape)
        if self._residual_placement(tensor).is_shard():
            shape[_SEQUENCE_DIM] //= self._mesh.size()
        return tuple(shape)

    def _distribute(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        layout = next((layout for pattern, layout in self._layouts.items() if fnmatchcase(name, pattern)), None)
        value, degree, rank = parameter.detach(), self._mesh.size(), self._mesh.get_local_rank()
        placement: Placement = Replicate()
        if layout is not None:
            if not layout.divides(tuple(value.shape), degree):
                raise OnecurveError(
                    f"layout: {name} of shape {list(value.shape)} cannot be split by '{layout}' over {degree} tensor "
                    "ranks; change its layout in the plan, or the degree of 'tensor'"
                )
            dim = layout.dim
            runs = layout.runs(value.shape[dim], rank, degree)
            value = torch.cat([value.narrow(dim, begin, end - begin) for begin, end in runs], dim)
            placement = Shard(dim) if layout.parts == 1 else _StridedShard(dim, split_factor=layout.parts)
        spec = DTensorSpec(
            self._mesh,
            (placement,),
            tensor_meta=TensorMeta(parameter.shape, parameter.stride(), parameter.dtype),
            use_strided_shard_as_shard_order=False,  # here _StridedShard means parts, not the order of two shardings
        )
        distributed = DTensor(value, spec, requires_grad=False)  # type: ignore[no-untyped-call]
        return nn.Parameter(distributed, requires_grad=parameter.requires_grad)

    def _residual_placement(self, tensor: Tensor) -> Placement:
        """The placement of an activation in the residual stream: replicated if the sequence does not divide evenly."""
        sharded = self._sequence and tensor.dim() > 2 and tensor.shape[_SEQUENCE_DIM] % self._mesh.size() == 0
        return Shard(_SEQUENCE_DIM) if sharded else Replicate()

    def _gather_inputs(self, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._gather_input(argument) for argument in arguments)

    def _gather_input(self, value: Any) -> Any:
        if (
            not isinstance(value, DTensor)
            or not value.is_floating_point()
            or value.placements[0] != self._residual_placement(value)
        ):
            return value
        # The projections to q, k and v share one input: gather it, and reduce its gradient, once for all of them.
        if self._last_gathered is None or self._last_gathered[0] is not value:
            gathered = _Redistribute.apply(value, Replicate(), self._residual_placement(value))  # type: ignore[no-untyped-call]
            self._last_gathered = value, gathered
        return self._last_gathered[1]

    def _reduce_output(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, DTensor) or not output.placements[0].is_partial():
            return output
        return _Redistribute.apply(output, self._residual_placement(output), Replicate())  # type: ignore[no-untyped-call]


def _make_contiguous(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.contiguous() if isinstance(value, DTensor) else value for value in arguments)


class _Redistribute(torch.autograd.Function):
    """Redistributes an activation to one placement in forward, and its gradient to another one in backward."""

    @staticmethod
    def forward(ctx: Any, value: DTensor, placement: Placement, gradient_placement: Placement) -> Tensor:
        ctx.gradient_placement = gradient_placement
        with step_clock.measure("tensor"):
            return value.redistribute(placements=[placement]).view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[DTensor, None, None]:
        with step_clock.measure("tensor"):
            return gradient.redistribute(placements=[ctx.gradient_placement]), None, None


def _tensor_placement(parameter: Any) -> Placement:
    """The placement along the axis `tensor`, which is the last one of a parameter that fully_shard has sharded."""
    placement: Placement = parameter.placements[-1]
    return placement


def full_tensor(value: Any) -> Any:
    """Return the full tensor of a DTensor; return other values unchanged."""
    if not isinstance(value, DTensor):
        return value
    with step_clock.measure("tensor"):
        return value.full_tensor()

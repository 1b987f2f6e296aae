"""The axis `replicate` used alone: torch's DDP, which averages gradients over the ranks while backward still runs."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from onecurve.apply.gradient_reducer import refuse_sparse_gradient
from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.model.fake_mode import refuse_fake_tensors

UnusedParameterTest = Callable[[nn.Module, torch.dtype, Group], bool]
"""A function (module, dtype, group) → True if some steps leave a trainable parameter without a gradient."""
UnusedParameterTrial = Callable[[nn.Module, torch.dtype, int], tuple[Tensor, bool]]
"""A function (module, dtype, trial number) → loss, and True if Python or NumPy drew random numbers. It runs the model
on a few samples, different ones for each trial number, to show which parameters get a gradient."""
_READS_A_VALUE = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
}

_TRIALS = 3


def replicate(
    module: nn.Module, group: Group, find_unused: bool, compress_dtype: torch.dtype | None
) -> DistributedDataParallel:
    """Wrap the module in DDP.

    `find_unused`: some parameters may get no gradient. `compress_dtype`: the dtype in which gradients are sent, or None
    to send them in their own.
    """
    kind = DistributedDataParallel if find_unused else _DeterministicDDP
    ddp = kind(
        module,
        process_group=group,
        forward_sync_buffers=False,  # synchronized batch norm keeps buffers equal; local batch norm lets them differ
        init_sync=False,  # every rank has built the same initial weights
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused,
    )
    if compress_dtype is not None:
        ddp.register_comm_hook(group, _compress_hook(compress_dtype))
    return ddp


class _DeterministicDDP(DistributedDataParallel):
    """DDP that puts the same gradients into the same buckets in every step.

    By default the first step has one bucket, and later ones have buckets in the order in which the gradients of the
    first step were ready. With three or more ranks the order of a sum depends on the place in its bucket, so a run that
    was resumed would not compute the same numbers as one that was not. Here the order is fixed from the start: that of
    backward in a model whose modules are called in the order of their definition. With `find_unused_parameters` DDP
    never changes its buckets.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.reducer._push_all_rebuilt_params()

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        parameters, expect_sparse_gradient = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], expect_sparse_gradient[::-1]


@refuse_fake_tensors()
def leaves_parameters_unused(module: nn.Module, trial: UnusedParameterTrial, dtype: torch.dtype, group: Group) -> bool:
    """True if a trial backward leaves a trainable parameter without a gradient on any rank, or if a later one may: a
    forward that reads values, or draws numbers in Python, can take another branch. All ranks get the same answer; the
    module's gradients are removed."""
    unused = False
    for number in range(_TRIALS):
        with _ValueReads() as reads:
            loss, draws = trial(module, dtype, number)
        loss.backward()  # type: ignore[no-untyped-call]
        unused |= reads.found or draws
        for name, parameter in module.named_parameters():
            refuse_sparse_gradient(name, parameter.grad)
        unused |= any(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
        module.zero_grad(set_to_none=True)
    flag = torch.tensor(float(unused), device=next(module.parameters()).device)
    return bool(all_reduce_sum(group, flag).item())


class _ValueReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices that Python code reads the values of tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(
        self, operation: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found |= operation in _READS_A_VALUE
        return operation(*arguments, **(kwargs or {}))


class EveryParameter:
    """Refuses a step in which a parameter gets no gradient although DDP expects one: the ranks would wait for each
    other's messages, or take one for another."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], in_rounds: bool) -> None:
        """`in_rounds`: a step has several rounds, in which gradients accumulate."""
        self._named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self._used: set[int] | None = set() if in_rounds else None
        for number, (_, parameter) in enumerate(self._named if in_rounds else ()):
            parameter.register_hook(partial(self._note, number))  # type: ignore[no-untyped-call]

    def _note(self, number: int, _: Tensor) -> None:
        assert self._used is not None
        self._used.add(number)

    def begin_round(self) -> None:
        if self._used is not None:
            self._used.clear()

    def require(self) -> None:
        """Call this after the last backward of a step, before anything else is exchanged."""
        for number, (name, parameter) in enumerate(self._named):
            if parameter.grad is None or (self._used is not None and number not in self._used):
                raise OnecurveError(
                    f"model: parameter {name!r} got no gradient in this step on this rank, and every parameter got one "
                    "in the trial before training, so the replicas have agreed to exchange all of them. Use the "
                    "parameter in every forward (adding 0 times its sum is enough), or train with a plan of one rank"
                )


def _compress_hook(dtype: torch.dtype) -> Callable[[Group, Any], torch.futures.Future[Tensor]]:
    """torch's compression hook under another name: by its own name DDP refuses bf16 without NCCL, though gloo can send
    it."""
    hook = default_hooks.bf16_compress_hook if dtype == torch.bfloat16 else default_hooks.fp16_compress_hook

    def compress(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        return hook(group, bucket)

    return compress

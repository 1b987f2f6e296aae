"""torch's pipeline stage, with receive buffers made for each micro-batch: torch makes them once, all of one size."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining._backward import (
    _get_grad_fn_or_grad_acc,
    construct_reverse_graph,
    get_param_groups,
)
from torch.distributed.pipelining.schedules import _PipelineSchedule

from onecurve.describe.plan import Schedule

Expected = Callable[[int], Sequence[Tensor]]
"""Fake tensors in the shape of what a stage is given for a micro-batch."""


class DynamicShapeStage(PipelineStage):
    """Knows what it will be given for each micro-batch, so that ranks need not ask each other."""

    def __init__(
        self,
        module: nn.Module,
        number: int,
        count: int,
        device: torch.device,
        group: dist.ProcessGroup,
        expected: Expected,
        sends: int,
    ) -> None:
        super().__init__(module, number, count, device, input_args=(), output_args=(), group=group)
        self._expected, self._sends = expected, sends
        self._halves: bool | None = None
        self._activations: dict[int, list[Tensor]] = {}
        self._gradients: dict[int, list[Tensor | None]] = {}

    def _prepare_forward_infra(self, rounds: int, *_: Any, **__: Any) -> None:  # type: ignore[override]
        count = len(self._expected(0))
        self._stage_meta.inputs = (None,) * count  # type: ignore[assignment]  # only their number is read
        self.args_recv_info = {0: ()}
        self.act_send_info = {0: []} if self.is_last else {n: [self.stage_index + 1] for n in range(self._sends)}
        self.chunks = rounds

    def _prepare_backward_infra(self, *_: Any, **__: Any) -> None:
        pass

    def get_fwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        if self.is_first:
            return []
        buffers = [torch.empty(x.shape, dtype=x.dtype, device=self.device) for x in self._expected(chunk)]
        self._activations[chunk] = buffers
        return self._receive(buffers, self.stage_index - 1)

    def _retrieve_recv_activations(self, chunk: int) -> tuple[Tensor, ...]:
        return tuple(x.requires_grad_(x.is_floating_point()) for x in self._activations[chunk])

    def get_bwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        if self.is_last:
            return []
        sent, _ = self.fwd_cache[chunk]
        buffers = [torch.empty_like(x, requires_grad=False) if x.is_floating_point() else None for x in sent]
        self._gradients[chunk] = buffers
        return self._receive([each for each in buffers if each is not None], self.stage_index + 1)

    def _retrieve_recv_grads(self, chunk: int) -> tuple[Tensor | None, ...]:
        return tuple(self._gradients.pop(chunk))

    def backward_one_chunk(self, chunk: int, *arguments: Any, **kwargs: Any) -> None:  # type: ignore[override]
        super().backward_one_chunk(chunk, *arguments, **kwargs)
        given = self._activations.pop(chunk, [])
        self.grad_send_info = [self.stage_index - 1 if x.is_floating_point() else None for x in given]
        self.bwd_cache[chunk] = tuple(map(_sendable, given, self.bwd_cache[chunk]))

    def backward_maybe_with_nosync(self, kind: str, given: dict[str, Any], last_backward: bool = False) -> Any:
        if kind == "input" and not self._comes_apart(given["stage_output"], given["input_values"]):
            whole = given["stage_output"][0] if self.is_last else given["stage_output"]
            return super().backward_maybe_with_nosync("full", {**given, "stage_output": whole}, last_backward)
        if kind == "weight" and not self._halves:
            return (), None
        return super().backward_maybe_with_nosync(kind, given, last_backward)

    def _comes_apart(self, outputs: Sequence[Tensor], inputs: Sequence[Any]) -> bool:
        """Whether backward can be run in halves: torch does it rightly where every parameter is used once, on the way
        from what was received. Where that is not so the first half does it all."""
        if self._halves is None:
            made = construct_reverse_graph([x.grad_fn for x in outputs if x.grad_fn is not None])
            nodes = [_get_grad_fn_or_grad_acc(x) for x in inputs if isinstance(x, Tensor) and x.requires_grad]
            parameters = [_get_grad_fn_or_grad_acc(x) for x in self.submod.parameters() if x.requires_grad]
            used = {node for node in parameters if node is not None and node in made}
            groups = get_param_groups([node for node in nodes if node], list(used), made)
            once = all(len(group["intermediates"]) == 1 for group in groups)
            self._halves = bool(used) and once and set().union(*(group["params"] for group in groups)) == used
        return self._halves

    def _get_grad_send_meta(self, _: int) -> Any:
        return True  # there always is a gradient to send

    def _receive(self, buffers: Sequence[Tensor], stage: int) -> list[dist.P2POp]:
        peer = self._resolve_peer_global_rank(stage)
        return [dist.P2POp(dist.irecv, buffer, peer, self.group) for buffer in buffers]


class StageModule(nn.Module):
    """What torch's stage calls, with the parameters that are the stage's own."""

    def __init__(self, work: Callable[..., Any], own: Sequence[nn.Module], loose: Sequence[nn.Module]) -> None:
        """`own`: the stage's blocks and units; `loose`: modules around them, of which it uses parameters."""
        super().__init__()
        self.own, self.loose = nn.ModuleList(own), list(loose)
        self._work = work

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        yield from super().parameters(recurse)
        for each in self.loose:
            yield from each.parameters(recurse=False)

    def forward(self, *received: Tensor, number: int) -> Any:
        return self._work(number, *received)


def _sendable(given: Tensor, gradient: Tensor | None) -> Tensor | None:
    """A gradient is waited for, also where nothing came of what was given."""
    if gradient is None:
        return torch.zeros_like(given) if given.is_floating_point() else None
    return gradient.contiguous()


def make_schedule(kind: Schedule, stages: Sequence[DynamicShapeStage], rounds: int) -> _PipelineSchedule:
    """Its loss is what the last stage gives."""
    settings = {"n_microbatches": rounds, "loss_fn": lambda output, _: output, "scale_grads": False}
    # On an error it would log every rank's whole schedule.
    logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
    if kind in _ONE_STAGE:
        (stage,) = stages
        return _ONE_STAGE[kind](stage, **settings)  # type: ignore[arg-type]
    return _SEVERAL_STAGES[kind](list(stages), **settings)  # type: ignore[arg-type]


_ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SEVERAL_STAGES = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}

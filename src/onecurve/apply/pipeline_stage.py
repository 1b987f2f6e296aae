"""torch's pipeline stage with receive buffers allocated per micro-batch, and the schedules.

torch allocates receive buffers once, so all its micro-batches must have the same shapes; here they may differ.
"""

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
    reverse_closure,
)
from torch.distributed.pipelining.schedules import _PipelineSchedule

from onecurve.describe.plan import Schedule
from onecurve.device.step_clock import step_clock

ReceivedShapes = Callable[[int], Sequence[Tensor]]
"""Micro-batch number → fake tensors with the shapes and dtypes that the stage receives."""


class DynamicShapeStage(PipelineStage):
    """A stage that computes what it receives for each micro-batch, so that ranks need not exchange shapes."""

    def __init__(
        self,
        module: nn.Module,
        stage: int,
        stage_count: int,
        device: torch.device,
        group: dist.ProcessGroup,
        received_shapes: ReceivedShapes,
        sent_tensors: int,
    ) -> None:
        """`sent_tensors`: the number of tensors that the stage sends to the next one per micro-batch."""
        super().__init__(module, stage, stage_count, device, input_args=(), output_args=(), group=group)
        self._received_shapes, self._sent_tensors = received_shapes, sent_tensors
        self._backward_splits: bool | None = None
        self._activations: dict[int, list[Tensor]] = {}
        self._gradients: dict[int, list[Tensor | None]] = {}

    def _prepare_forward_infra(self, rounds: int, *_: Any, **__: Any) -> None:  # type: ignore[override]
        count = len(self._received_shapes(0))
        self._stage_meta.inputs = (None,) * count  # type: ignore[assignment]  # torch reads only the length
        self.args_recv_info = {0: ()}
        self.act_send_info = {0: []} if self.is_last else {n: [self.stage_index + 1] for n in range(self._sent_tensors)}
        self.chunks = rounds

    def _prepare_backward_infra(self, *_: Any, **__: Any) -> None:
        pass

    def get_fwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        if self.is_first:
            return []
        buffers = [torch.empty(x.shape, dtype=x.dtype, device=self.device) for x in self._received_shapes(chunk)]
        self._activations[chunk] = buffers
        return self._receive_ops(buffers, self.stage_index - 1)

    def _retrieve_recv_activations(self, chunk: int) -> tuple[Tensor, ...]:
        return tuple(x.requires_grad_(x.is_floating_point()) for x in self._activations[chunk])

    def get_bwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        if self.is_last:
            return []
        sent, _ = self.fwd_cache[chunk]
        buffers = [torch.empty_like(x, requires_grad=False) if x.is_floating_point() else None for x in sent]
        self._gradients[chunk] = buffers
        return self._receive_ops([buffer for buffer in buffers if buffer is not None], self.stage_index + 1)

    def _retrieve_recv_grads(self, chunk: int) -> tuple[Tensor | None, ...]:
        return tuple(self._gradients.pop(chunk))

    def forward_one_chunk(self, *arguments: Any, **kwargs: Any) -> Any:
        with step_clock.measure("forward"):
            return super().forward_one_chunk(*arguments, **kwargs)

    def backward_weight_one_chunk(self, *arguments: Any, **kwargs: Any) -> None:
        with step_clock.measure("backward"):
            super().backward_weight_one_chunk(*arguments, **kwargs)

    def backward_one_chunk(self, chunk: int, *arguments: Any, **kwargs: Any) -> None:  # type: ignore[override]
        with step_clock.measure("backward"):
            super().backward_one_chunk(chunk, *arguments, **kwargs)
        received = self._activations.pop(chunk, [])
        self.grad_send_info = [self.stage_index - 1 if x.is_floating_point() else None for x in received]
        self.bwd_cache[chunk] = tuple(map(_gradient_to_send, received, self.bwd_cache[chunk]))

    def backward_maybe_with_nosync(self, kind: str, bwd_kwargs: dict[str, Any], last_backward: bool = False) -> Any:
        if kind == "input" and not self._can_split_backward(bwd_kwargs["stage_output"], bwd_kwargs["input_values"]):
            output = bwd_kwargs["stage_output"][0] if self.is_last else bwd_kwargs["stage_output"]
            return super().backward_maybe_with_nosync("full", {**bwd_kwargs, "stage_output": output}, last_backward)
        if kind == "weight" and not self._backward_splits:
            return (), None
        return super().backward_maybe_with_nosync(kind, bwd_kwargs, last_backward)

    def _can_split_backward(self, outputs: Sequence[Tensor], inputs: Sequence[Any]) -> bool:
        """True if backward can be split into a part for the inputs and a part for the weights.

        torch's split is correct only if every parameter is used once and on a path from the received tensors, and every
        output depends on them. Otherwise the part for the inputs runs the full backward, and the part for the weights
        does nothing. Decided on the first micro-batch.
        """
        if self._backward_splits is None and self.submod.recomputes:  # each part would recompute
            self._backward_splits = False
        if self._backward_splits is None:
            output_nodes = [x.grad_fn for x in outputs if x.grad_fn is not None]
            reverse_graph = construct_reverse_graph(output_nodes)
            nodes = [_get_grad_fn_or_grad_acc(x) for x in inputs if isinstance(x, Tensor) and x.requires_grad]
            input_nodes = [node for node in nodes if node is not None]
            depends_on_inputs, _ = reverse_closure(input_nodes, set(), reverse_graph)
            parameters = [_get_grad_fn_or_grad_acc(x) for x in self.submod.parameters() if x.requires_grad]
            used = {node for node in parameters if node is not None and node in reverse_graph}
            groups = get_param_groups(input_nodes, list(used), reverse_graph)
            used_once = all(len(group["intermediates"]) == 1 for group in groups)
            grouped = set().union(*(group["params"] for group in groups))
            no_direct_output = depends_on_inputs.issuperset(output_nodes)
            self._backward_splits = bool(used) and used_once and grouped == used and no_direct_output
        return self._backward_splits

    def _get_grad_send_meta(self, _: int) -> Any:
        return True  # a gradient is always sent

    def _receive_ops(self, buffers: Sequence[Tensor], stage: int) -> list[dist.P2POp]:
        peer = self._resolve_peer_global_rank(stage)
        return [dist.P2POp(dist.irecv, buffer, peer, self.group) for buffer in buffers]


class StageModule(nn.Module):
    """The module that torch's stage calls; it exposes the parameters that the stage uses."""

    def __init__(
        self,
        stage_forward: Callable[..., Any],
        modules: Sequence[nn.Module],
        surrounding: Sequence[nn.Module],
        recomputes: Callable[[], bool],
    ) -> None:
        """`modules`: the stage's blocks and units; `surrounding`: the modules around them, of which only the parameters
        that they own directly belong to the stage. `recomputes`: see the property."""
        super().__init__()
        self.stage_modules, self.surrounding = nn.ModuleList(modules), list(surrounding)
        self._stage_forward, self._recomputes = stage_forward, recomputes

    @property
    def recomputes(self) -> bool:
        """True if backward recomputes activations."""
        return self._recomputes()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        yield from super().parameters(recurse)
        for module in self.surrounding:
            yield from module.parameters(recurse=False)

    def forward(self, *received: Tensor, round_number: int) -> Any:
        return self._stage_forward(round_number, *received)


def _gradient_to_send(received: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The gradient of a received tensor. The previous stage waits for one, so an unused tensor gets zeros."""
    if gradient is None:
        return torch.zeros_like(received) if received.is_floating_point() else None
    return gradient.contiguous()


def make_schedule(kind: Schedule, stages: Sequence[DynamicShapeStage], rounds: int) -> _PipelineSchedule:
    """Return torch's schedule for this rank's stages. The last stage returns the loss itself."""
    settings = {"n_microbatches": rounds, "loss_fn": lambda output, _: output, "scale_grads": False}
    # On an error torch would log the complete schedule of every rank.
    logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
    if kind in _ONE_STAGE_PER_RANK:
        (stage,) = stages
        return _ONE_STAGE_PER_RANK[kind](stage, **settings)  # type: ignore[arg-type]
    return _SEVERAL_STAGES_PER_RANK[kind](list(stages), **settings)  # type: ignore[arg-type]


_ONE_STAGE_PER_RANK = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SEVERAL_STAGES_PER_RANK = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}

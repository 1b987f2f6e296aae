"""Run only one pipeline stage of a model, with the model's own unmodified forward.

Every stage calls the full forward. Blocks of other stages are replaced by placeholders, which return the outputs
received from an earlier stage, or zeros of the right shape where this stage does not need them. Once the stage's own
blocks have run and the next block is called, an exception that only this file sees ends the forward. Units (modules
outside the blocks that own parameters: embeddings, the head) exist on the stages that need them. Any other computation
between the blocks is repeated on every stage that needs it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.apply.absent_module import AbsentModule, copy_forward_hooks
from onecurve.apply.model_checkpoints import model_checkpoints
from onecurve.apply.shape_inference import ModuleOutputs, ShapeInference
from onecurve.describe.dataflow import BlockOutput, Dataflow
from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch

Reseed = Callable[[int], None]
"""Seeds the random number generators for a position in the forward pass."""


@dataclass(frozen=True)
class StageSpan:
    """The blocks [begin, end) of a pipeline stage, as indices into `Dataflow.blocks`."""

    begin: int
    end: int


class PartialForward:
    """A model reduced to the blocks and units of this rank's stages. The other modules are removed permanently."""

    def __init__(
        self,
        model: nn.Module,
        dataflow: Dataflow,
        spans: Sequence[StageSpan],
        shapes: ShapeInference,
        device: torch.device,
    ) -> None:
        self._model, self._dataflow, self._shapes, self._device = model, dataflow, shapes, device
        self._run = _Run(
            span=StageSpan(0, len(dataflow.blocks)), outputs=ModuleOutputs({}, None), received={}, reseed=lambda _: None
        )
        self.recomputes = False
        """True once the model itself has called torch.utils.checkpoint."""
        block_numbers = {name: number for number, name in enumerate(dataflow.blocks)}
        self._placeholders = {
            name: AbsentModule(name, model.get_submodule(name), self._placeholder_output(name, block_numbers.get(name)))
            for name in (*dataflow.blocks, *dataflow.units)
        }
        self._names_by_span = {span: self._names_needed(span) for span in spans}
        self.local_names = [
            name for name in self._placeholders if any(name in names for names in self._names_by_span.values())
        ]
        """The blocks and units of all of this rank's stages."""
        for name, placeholder in self._placeholders.items():
            if name not in self.local_names:
                model.set_submodule(name, placeholder)
        inside = {id(module) for name in self.local_names for module in model.get_submodule(name).modules()}
        self.surrounding_modules = [
            module for module in model.modules() if id(module) not in inside and not isinstance(module, AbsentModule)
        ]
        """The modules around blocks and units. Every stage holds the parameters that these own directly."""
        self._modules = {name: model.get_submodule(name) for name in self.local_names}
        self._engine_hooks: set[int] = set()
        """Ids of the forward hooks that are not the model's own."""

    def names_of(self, span: StageSpan) -> list[str]:
        """The blocks and units of one stage."""
        return [name for name in self.local_names if name in self._names_by_span[span]]

    def register_output_hooks(self) -> None:
        """Capture the outputs of this rank's blocks from now on.

        Call this after fully_shard and tensor parallelism have registered their hooks, so that outputs are captured as
        those leave them.
        """
        for number, name in enumerate(self._dataflow.blocks):
            if name in self.local_names:
                self._modules[name].register_forward_hook(self._capture_hook(number))
        for module in self._modules.values():
            module.register_forward_pre_hook(lambda *_: self._advance())
            module.register_forward_hook(lambda *_: self._advance())
        self._engine_hooks = {number for module in self._modules.values() for number in module._forward_hooks}

    def run(
        self, span: StageSpan, micro: MicroBatch, received: Sequence[Tensor], reseed: Reseed = lambda _: None
    ) -> Any:
        """Return the tensors that later stages need, in the order of `Dataflow.tensors_crossing`, or the model's output
        for the last stage.

        `received`: the tensors that cross into this stage, in the same order. `reseed` is called with the position in
        the forward before and after every block and unit, present or absent, so that random numbers drawn outside of
        them are the same on every stage.
        """
        run = _Run(
            span=span,
            outputs=self._shapes.of(micro, self._model.training),
            received=dict(zip(self._dataflow.tensors_crossing(span.begin), received, strict=True)),
            reseed=reseed,
        )
        reseed(0)
        try:
            with self._active(run), model_checkpoints(self._recomputation):
                output = micro.forward(self._model)
        except _ForwardEndedError:
            # A tensor that is passed on unchanged is cloned: the stage's output must not be its own input, a leaf.
            return [
                run.captured[source] if source in run.captured else run.received[source].clone()
                for source in self._dataflow.tensors_crossing(span.end)
            ]
        if span.end < len(self._dataflow.blocks):
            next_block = self._dataflow.blocks[span.end]
            raise OnecurveError(f"model: forward returned without calling block {next_block!r}")
        _refuse_incomplete(output, run.outputs.output)
        return output

    def boundary_shapes(self, end: int, micro: MicroBatch) -> list[Tensor]:
        """Fake tensors with the shapes and dtypes of the tensors that cross the boundary before block `end`."""
        returned = self._shapes.of(micro, self._model.training).returned
        return [
            _tensor_leaves(returned[self._dataflow.blocks[source.block]][0])[source.tensor]
            for source in self._dataflow.tensors_crossing(end)
        ]

    def zero_output(self, micro: MicroBatch) -> Any:
        """Zeros with the structure, shapes and dtypes of the model's output."""
        return pytree.tree_map(self._zeros, self._shapes.of(micro, self._model.training).output)

    def _names_needed(self, span: StageSpan) -> set[str]:
        return {*self._dataflow.blocks[span.begin : span.end], *self._dataflow.units_needed(span.begin, span.end)}

    @contextmanager
    def _active(self, run: "_Run") -> Iterator[None]:
        """A context for one run, in which placeholders replace the modules of this rank's other stages."""
        before, self._run = self._run, run
        others = [name for name in self.local_names if name not in self._names_by_span[run.span]]
        modules_before = [self._model.get_submodule(name) for name in others]
        for name in others:
            self._model.set_submodule(name, self._placeholders[name])
        try:
            yield
        finally:
            self._run = before
            for name, module in zip(others, modules_before, strict=True):
                self._model.set_submodule(name, module)
            for name in self.local_names if len(self._names_by_span) > 1 else ():
                self._share_new_hooks(self._modules[name], self._placeholders[name])

    def _share_new_hooks(self, module: nn.Module, placeholder: nn.Module) -> None:
        """A model may register hooks in its first forward, which sees only one of the two."""
        copy_forward_hooks(module, placeholder, self._engine_hooks)
        copy_forward_hooks(placeholder, module, self._engine_hooks)

    def _recomputation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that recomputes, in backward, what the model checkpoints now.

        It sees the same received tensors and draws the same random numbers as now.
        """
        self.recomputes = True
        now = self._run.copy()

        def recompute(*arguments: Any, **kwargs: Any) -> Any:
            with self._active(now.copy()), suppress(_ForwardEndedError):
                return function(*arguments, **kwargs)

        return recompute

    def _placeholder_output(self, name: str, number: int | None) -> Callable[[], Any]:
        """Return the function that computes the output of an absent module; `number` is None for a unit."""

        def output() -> Any:
            run = self._run
            if number is not None and number >= run.span.end:
                raise _ForwardEndedError
            run.position += 1  # a present module advances twice, before and after its forward
            self._advance()
            call = run.call_counts[name]
            run.call_counts[name] += 1
            leaves, structure = pytree.tree_flatten(run.outputs.returned[name][call])
            received = _outputs_of_block(run.received, number)
            tensor_number = -1
            for position, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor):
                    tensor_number += 1
                    # Cloned because the model may change it in place, which autograd forbids for a leaf.
                    leaves[position] = (
                        received[tensor_number].clone() if tensor_number in received else self._zeros(leaf)
                    )
            return pytree.tree_unflatten(leaves, structure)

        return output

    def _advance(self) -> None:
        self._run.position += 1
        self._run.reseed(self._run.position)

    def _zeros(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device=self._device)

    def _capture_hook(self, number: int) -> Callable[..., Any]:
        def capture(_: nn.Module, __: Any, output: Any) -> Any:
            """Capture the block's outputs. The model goes on with copies of those that will be sent, because it may
            change them in place (an activation after a convolution), and the next stage would do so again."""
            leaves, structure = pytree.tree_flatten(output)
            sent = set(self._dataflow.tensors_crossing(self._run.span.end))
            tensors = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
            for index, position in enumerate(tensors):
                source = BlockOutput(number, index)
                self._run.captured[source] = leaves[position]
                if source in sent:
                    leaves[position] = leaves[position].clone()
            return pytree.tree_unflatten(leaves, structure)

        return capture


@dataclass
class _Run:
    """The state of one stage's forward of one micro-batch."""

    span: StageSpan
    outputs: ModuleOutputs
    """What all modules return, as fake tensors."""
    received: Mapping[BlockOutput, Tensor]
    reseed: Reseed
    captured: dict[BlockOutput, Tensor] = field(default_factory=dict)
    """What this stage's blocks have returned so far."""
    position: int = 0
    """Number of starts and ends of blocks and units so far, present or absent."""
    call_counts: Counter[str] = field(default_factory=Counter)
    """Number of calls of each absent module."""

    def copy(self) -> "_Run":
        """A run that continues from the same position, and has captured nothing."""
        return replace(self, captured={}, call_counts=Counter(self.call_counts))


class _ForwardEndedError(BaseException):
    """Ends the forward of a stage. Not an Exception, so that no handler in the model catches it."""


def _refuse_incomplete(output: Any, full_output: Any) -> None:
    """Raise if the last stage returns another structure than the full model."""
    returned, expected = pytree.tree_flatten(output), pytree.tree_flatten(full_output)
    if returned[1] != expected[1]:
        raise OnecurveError(
            f"model: its output has {len(expected[0])} values, but {len(returned[0])} on the last pipeline stage, "
            "because it collects outputs of modules inside blocks that other stages hold (attention weights, "
            "router logits); do not return them, or use another axis"
        )


def _tensor_leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _outputs_of_block(values: Mapping[BlockOutput, Tensor], block: int | None) -> dict[int, Tensor]:
    """The known outputs of one block, by their index among the tensors it returns."""
    return {source.tensor: value for source, value in values.items() if source.block == block}

"""A model of which a rank runs some blocks, with the model's own forward.

The whole forward runs on every stage. Blocks of other stages are absent: in their place stands what was received of
their outputs, or zeros of the right shape; once a stage's own blocks have run and another is called, the forward is
left, by an exception that only this file sees. Units beside the blocks (embeddings, the head) are there on the stages
that need them. All else that a model does between its blocks is done again wherever it is needed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.apply.shape_inference import ModuleOutputs, ShapeInference
from onecurve.describe.dataflow import Dataflow, Source
from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch

Reseed = Callable[[int], None]


@dataclass(frozen=True)
class Span:
    """The blocks [begin, end) of a stage, counted along the model."""

    begin: int
    end: int


class AbsentModule(nn.Module):
    """In the place of a module that another stage has. What else is asked of the module, it still answers."""

    def __init__(self, module: nn.Module, answer: Callable[[], Any]) -> None:
        super().__init__()
        self.__dict__["_absent"] = module  # not registered: its parameters are nobody's here
        self._answer = answer

    def forward(self, *_: Any, **__: Any) -> Any:
        return self._answer()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_absent"], name)


class PartialForward:
    """The model with what this rank has of it; the rest is taken out for good."""

    def __init__(
        self, model: nn.Module, dataflow: Dataflow, spans: Sequence[Span], shapes: ShapeInference, device: torch.device
    ) -> None:
        self._model, self._dataflow, self._shapes, self._device = model, dataflow, shapes, device
        self._span = Span(0, len(dataflow.blocks))
        self._place = 0
        self._reseed: Reseed = lambda _: None
        self._outputs = ModuleOutputs({}, None)
        self._calls: Counter[str] = Counter()
        self._values: dict[Source, Tensor] = {}
        self._versions: dict[Source, int] = {}
        number_of = {name: number for number, name in enumerate(dataflow.blocks)}
        self._absent = {
            name: AbsentModule(model.get_submodule(name), self._answer(name, number_of.get(name)))
            for name in (*dataflow.blocks, *dataflow.units)
        }
        self._present = {span: self._names(span) for span in spans}
        self.own = [name for name in self._absent if any(name in names for names in self._present.values())]
        for name, absent in self._absent.items():
            if name not in self.own:
                model.set_submodule(name, absent)
        inside = {id(each) for name in self.own for each in model.get_submodule(name).modules()}
        self.around = [
            each for each in model.modules() if id(each) not in inside and not isinstance(each, AbsentModule)
        ]
        """Modules around the blocks and units: what is theirs alone, every stage has."""
        self._modules = {name: model.get_submodule(name) for name in self.own}

    def names_of(self, span: Span) -> list[str]:
        """The blocks and units of a stage."""
        return [name for name in self.own if name in self._present[span]]

    def listen(self) -> None:
        """Once engines have hooked into the blocks: from now on their outputs are seen as the engines leave them."""
        for number, name in enumerate(self._dataflow.blocks):
            if name in self.own:
                self._modules[name].register_forward_hook(self._take(number))
        for module in self._modules.values():
            module.register_forward_pre_hook(lambda *_: self._move_on())
            module.register_forward_hook(lambda *_: self._move_on())

    def run(self, span: Span, micro: MicroBatch, received: Sequence[Tensor], reseed: Reseed = lambda _: None) -> Any:
        """What later stages need after this span, in the order of the flow; of the last one the model's output.

        `reseed` is called with the place in the forward, before and after every block and unit, present or not: so what
        the model draws outside of them is the same on every stage.
        """
        self._reseed, self._place = reseed, 0
        reseed(0)
        self._span, self._outputs = span, self._shapes.of(micro, self._model.training)
        self._calls.clear()
        self._values = dict(zip(self._dataflow.crossing(span.begin), received, strict=True))
        self._versions.clear()
        before = dict(self._values)
        last = span.end == len(self._dataflow.blocks)
        try:
            with self._only(span):
                output = micro.forward(self._model)
        except _LeftError:
            self._refuse_changed(span)
            return [
                value.clone() if before.get(source) is value else value  # handed on: a tensor of the stage's own again
                for source, value in ((each, self._values[each]) for each in self._dataflow.crossing(span.end))
            ]
        finally:
            self._values = {}
        if not last:
            raise OnecurveError(f"model: its forward ended without calling {self._dataflow.blocks[span.end]!r}")
        return output

    def _refuse_changed(self, span: Span) -> None:
        """The next stage would change it once more."""
        for source in self._dataflow.crossing(span.end):
            if source in self._versions and self._values[source]._version != self._versions[source]:
                name = self._dataflow.blocks[source.block]
                raise OnecurveError(
                    f"model: it writes into what the block {name!r} returned; a pipeline needs a new tensor there "
                    "(x = x + y instead of x += y)"
                )

    def crossing(self, end: int, micro: MicroBatch) -> list[Tensor]:
        """Fake tensors of the shapes that cross before block `end`."""
        returned = self._shapes.of(micro, self._model.training).returned
        return [_tensors(returned[self._dataflow.blocks[a]][0])[n] for a, n in self._dataflow.crossing(end)]

    def nothing(self, micro: MicroBatch) -> Any:
        """Zeros in the form of the model's output."""
        return pytree.tree_map(self._zeros, self._shapes.of(micro, self._model.training).output)

    def _names(self, span: Span) -> set[str]:
        return {*self._dataflow.blocks[span.begin : span.end], *self._dataflow.needed(span.begin, span.end)}

    @contextmanager
    def _only(self, span: Span) -> Iterator[None]:
        """What other stages of this rank have is out of the way."""
        others = [name for name in self.own if name not in self._present[span]]
        for name in others:
            self._model.set_submodule(name, self._absent[name])
        try:
            yield
        finally:
            for name in others:
                self._model.set_submodule(name, self._modules[name])

    def _answer(self, name: str, number: int | None) -> Callable[[], Any]:
        def answer() -> Any:
            if number is not None and number >= self._span.end:
                raise _LeftError
            self._place += 1
            self._move_on()
            call = self._calls[name]
            self._calls[name] += 1
            leaves, form = pytree.tree_flatten(self._outputs.returned[name][call])
            received = _by_number(self._values, number)
            count = -1
            for place, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor):
                    count += 1
                    # A tensor of the stage's own: the model may write into it, which it may not into what is a leaf.
                    leaves[place] = received[count].clone() if count in received else self._zeros(leaf)
            return pytree.tree_unflatten(leaves, form)

        return answer

    def _move_on(self) -> None:
        self._place += 1
        self._reseed(self._place)

    def _zeros(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device=self._device)

    def _take(self, number: int) -> Callable[..., None]:
        def take(_: nn.Module, __: Any, output: Any) -> None:
            for place, tensor in enumerate(_tensors(output)):
                self._values[Source(number, place)] = tensor
                self._versions[Source(number, place)] = tensor._version

        return take


class _LeftError(BaseException):
    """The forward was left. Not an Exception, so that nobody who handles those sees it."""


def _tensors(output: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(output) if isinstance(each, Tensor)]


def _by_number(values: Mapping[Source, Tensor], block: int | None) -> dict[int, Tensor]:
    return {source.tensor: value for source, value in values.items() if source.block == block}

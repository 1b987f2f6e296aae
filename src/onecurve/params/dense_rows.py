"""The parameters of a model as rows of tables, for servers: one table for each group of the optimizer.

A parameter begins with a row of its own. What the optimizer does not train, and buffers, are in a table that no step
changes: so every worker gets the same ones, whatever they were loaded from. Tensors that rows cannot hold exactly, such
as integers, are not sent; a digest of them shows whether a worker has the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import xxhash
from torch import Tensor, nn

from onecurve.job.optimizer import OptimizerFactory
from onecurve.job.optimizer_factory import build_optimizer
from onecurve.job.row_limits import RowLimits
from onecurve.job.row_optimizer import SGD, RowOptimizer, TorchOptimizer
from onecurve.params.slots import slots_of
from onecurve.params.table_holder import Gradients, ReadRows

_WIDTH = 256
_CONSTANT = "dense.constant"
"""No table of a model has a name with a dot."""


@dataclass(frozen=True)
class DenseTable:
    """A table of parameters, as servers see it."""

    table: str
    optimizer: RowOptimizer
    width: int = _WIDTH
    limits: RowLimits = field(default_factory=RowLimits)


@dataclass(frozen=True)
class _Place:
    """Where a tensor is."""

    first: int
    """Its first row."""
    elements: int

    @property
    def rows(self) -> range:
        return range(self.first, self.first - (-self.elements // _WIDTH))


class DenseRows:
    """Where each parameter and buffer of a model is."""

    def __init__(self, model: nn.Module, factory: OptimizerFactory, dtype: torch.dtype) -> None:
        """`model`: its tensors may be fake. `factory`: its optimizer. `dtype`: of rows."""
        # Real tensors that take no memory: a function of the user may look at their shapes.
        trained = {
            name: nn.Parameter(torch.zeros(()).expand(parameter.shape))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        names = {id(parameter): name for name, parameter in trained.items()}
        optimizer = build_optimizer(factory, trained.items())
        self.tables: dict[str, DenseTable] = {}
        self._places: dict[str, dict[str, _Place]] = {}
        for number, group in enumerate(optimizer.param_groups):
            members = {names[id(parameter)]: parameter.numel() for parameter in group["params"]}
            self._add(DenseTable(f"dense.{number}", TorchOptimizer.of(optimizer, group)), members)
        placed = {name for places in self._places.values() for name in places}
        others = [each for each in (*model.named_parameters(), *model.named_buffers()) if each[0] not in placed]
        # Parameters are in the dtype of rows, buffers in any.
        sent = {
            name: tensor.numel() for name, tensor in others if isinstance(tensor, nn.Parameter) or _fits(tensor, dtype)
        }
        self._add(DenseTable(_CONSTANT, SGD(lr=0.0)), sent)
        self.unsent = [name for name, _ in others if name not in sent]
        """Tensors that are not in rows."""

    def _add(self, table: DenseTable, members: Mapping[str, int]) -> None:
        self.tables[table.table] = table
        places: dict[str, _Place] = {}
        end = 0
        for name, elements in members.items():
            places[name] = _Place(end, elements)
            end = places[name].rows.stop
        self._places[table.table] = places

    def ids(self, constant: bool) -> dict[str, Tensor]:
        """The ids of all rows by table: of those that steps change, or of the others too."""
        return {
            table: torch.arange(max((place.rows.stop for place in places.values()), default=0))
            for table, places in self._places.items()
            if constant or table != _CONSTANT
        }

    def lines(self, tensors: Mapping[str, Tensor | None]) -> Gradients:
        """Return the rows of these tensors by table. Names that are missing, or None, are left out."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for table, places in self._places.items():
            given = [(place, tensors.get(name)) for name, place in places.items()]
            parts = [
                (torch.arange(place.first, place.rows.stop), _rows(each)) for place, each in given if each is not None
            ]
            if parts:
                found[table] = torch.cat([ids for ids, _ in parts]), torch.cat([rows for _, rows in parts])
        return found

    @torch.no_grad()
    def write(self, rows: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Write the rows of whole tables, in the order of their ids, into the tensors that they belong to."""
        for table, values in rows.items():
            for name, place in self._places[table].items():
                flat = values[place.first : place.rows.stop].flatten()[: place.elements]
                tensors[name].copy_(flat.view(tensors[name].shape))

    def reader(self, tensors: Mapping[str, Tensor], states: Mapping[str, Mapping[str, Tensor]]) -> ReadRows:
        """Return a function that reads the rows of tensors, with the states of their optimizers (zeros if they have
        none), as from a checkpoint."""
        rows = self.lines(tensors)
        by_name = {
            state: self.lines(
                {name: of_tensor.get(state, torch.zeros_like(tensors[name])) for name, of_tensor in states.items()}
            )
            for table in self.tables.values()
            for state in self.state_names(table.table)
        }

        def read(_: Sequence[str], slots: range) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
            for table, (ids, values) in rows.items():
                found = slots_of(ids)
                chosen = (found >= slots.start) & (found < slots.stop)
                parts = [by_name[state][table][1].to(values) for state in self.state_names(table)]
                if self._counts_updates(table):
                    parts.append(self._counts(table, states).to(values))
                of_states = torch.cat(parts, dim=1) if parts else values[:, :0]
                yield table, ids[chosen], values[chosen], of_states[chosen]

        return read

    def states(self, tables: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Return the states of the optimizers, as torch has them, of rows with their states in the order of their ids.
        `like`: the parameters."""
        found: dict[str, dict[str, Tensor]] = {name: {} for name in like}
        for table, values in tables.items():
            for number, state in enumerate(self.state_names(table), 1):
                tensors = {name: torch.empty_like(like[name]) for name in self._places[table]}
                self.write({table: values[:, number * _WIDTH : (number + 1) * _WIDTH]}, tensors)
                for name, tensor in tensors.items():
                    found[name][state] = tensor
            if self._counts_updates(table):
                for name, place in self._places[table].items():
                    found[name]["step"] = values[place.first, -1].float() if place.elements else torch.tensor(0.0)
        return found

    def _counts_updates(self, table: str) -> bool:
        optimizer = self.tables[table].optimizer
        return isinstance(optimizer, TorchOptimizer) and optimizer.counts_updates

    def _counts(self, table: str, states: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """For each row of a table, how many updates its parameter has had."""
        parts = [
            torch.full((len(place.rows), 1), float(states[name].get("step", 0.0)))
            for name, place in self._places[table].items()
        ]
        return torch.cat(parts)

    def state_names(self, table: str) -> tuple[str, ...]:
        """What torch calls the states of a table's parameters."""
        optimizer = self.tables[table].optimizer
        return optimizer.state_names if isinstance(optimizer, TorchOptimizer) else ()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A text that differs if one of these tensors does."""
    found = xxhash.xxh3_64()
    for name, tensor in tensors.items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _fits(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize <= dtype.itemsize


def _rows(tensor: Tensor) -> Tensor:
    """The elements of a tensor, as rows; zeros follow in the last one."""
    flat = tensor.detach().to("cpu").flatten()
    return torch.nn.functional.pad(flat, (0, -flat.numel() % _WIDTH)).view(-1, _WIDTH)

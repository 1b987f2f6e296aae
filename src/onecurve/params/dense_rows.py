"""The parameters of a model as rows of tables, for servers: one table for each group of the optimizer.

A parameter begins with a row of its own. Parameters that are not trained, and buffers, are in a table that no step
changes: so every worker gets the same ones, whatever they were loaded from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from onecurve.job.optimizer import OptimizerFactory
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

    def __init__(self, model: nn.Module, factory: OptimizerFactory) -> None:
        """`model`: its tensors may be fake. `factory`: its optimizer."""
        # Real tensors that take no memory: a function of the user may look at their shapes.
        trained = {
            name: nn.Parameter(torch.zeros(()).expand(parameter.shape))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        names = {id(parameter): name for name, parameter in trained.items()}
        optimizer = factory(trained.items())
        self.tables: dict[str, DenseTable] = {}
        self._places: dict[str, dict[str, _Place]] = {}
        for number, group in enumerate(optimizer.param_groups):
            members = {names[id(parameter)]: parameter.numel() for parameter in group["params"]}
            self._add(DenseTable(f"dense.{number}", TorchOptimizer.of(optimizer, group)), members)
        constants = {
            name: tensor.numel()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if name not in trained and tensor.is_floating_point()
        }
        self._add(DenseTable(_CONSTANT, SGD(lr=0.0)), constants)

    def _add(self, table: DenseTable, members: Mapping[str, int]) -> None:
        self.tables[table.table] = table
        places: dict[str, _Place] = {}
        end = 0
        for name, elements in members.items():
            places[name] = _Place(end, elements)
            end = places[name].rows.stop
        self._places[table.table] = places

    def names(self, table: str) -> list[str]:
        """The tensors in a table."""
        return list(self._places[table])

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
                parts = [by_name[state][table][1] for state in self.state_names(table)]
                of_states = torch.cat(parts, dim=1) if parts else values[:, :0]
                yield table, ids[chosen], values[chosen], of_states[chosen]

        return read

    def state_names(self, table: str) -> tuple[str, ...]:
        """What torch calls the states of a table's parameters."""
        optimizer = self.tables[table].optimizer
        return optimizer.state_names if isinstance(optimizer, TorchOptimizer) else ()


def _rows(tensor: Tensor) -> Tensor:
    """The elements of a tensor, as rows; zeros follow in the last one."""
    flat = tensor.detach().to("cpu").flatten()
    return torch.nn.functional.pad(flat, (0, -flat.numel() % _WIDTH)).view(-1, _WIDTH)

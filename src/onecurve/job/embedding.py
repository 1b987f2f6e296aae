"""Embedding tables without a number of rows: modules whose rows are no parameters of the model.

A row belongs to an id, any 64-bit integer. It exists once a step has updated it; before that it has its first value.
Forward takes the distinct rows of its input from the table as one leaf tensor, and backward fills the gradient of that
leaf. Who holds the rows and updates them is behind `RowSource`.
"""

import re
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.job.initial_rows import initial_rows
from onecurve.job.row_limits import RowLimits
from onecurve.job.row_optimizer import SGD, Adam, RowOptimizer, RowwiseAdagrad

BagMode = Literal["sum", "mean", "max"]


class RowSource(Protocol):
    """Where forward takes its rows from."""

    def rows(self, table: "EmbeddingTable", ids: Tensor, device: torch.device) -> Tensor:
        """Return the rows of these ids, which are distinct and on the host, as a leaf tensor on the device."""


class InitialRows:
    """The first values of all rows: what a model has that no run has connected with its rows."""

    def __init__(self, seed: int = 0, dtype: torch.dtype | None = None) -> None:
        """`dtype`: of the rows. Default: torch's default."""
        self._seed, self._dtype = seed, dtype

    def rows(self, table: "EmbeddingTable", ids: Tensor, device: torch.device) -> Tensor:
        dtype = self._dtype or torch.get_default_dtype()
        values = initial_rows(self._seed, table.table, ids, table.width, dtype).to(device)
        return values.requires_grad_(torch.is_grad_enabled())


class EmbeddingTable(nn.Module):
    """The common base of `Embedding` and `EmbeddingBag`. Modules of the same table name share its rows."""

    def __init__(
        self, table: str, width: int, optimizer: RowOptimizer | None, admit_after: int, evict_after: int | None
    ) -> None:
        super().__init__()
        _check(table, width, optimizer)
        self.table, self.width, self.limits = table, width, RowLimits(admit_after, evict_after)
        self.optimizer: RowOptimizer = optimizer or RowwiseAdagrad()
        self.padding_idx: int | None = None
        self.source: RowSource = InitialRows()

    def extra_repr(self) -> str:
        return f"{self.table!r}, {self.width}, optimizer={self.optimizer}{self.limits}"

    @property
    def settings_text(self) -> str:
        """All that modules of one table must agree on."""
        return f"{self.width}, {self.optimizer}{self.limits}"

    def _take(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of the input, for each id the index of its row, and the distinct ids on the host."""
        if ids.dtype not in (torch.int64, torch.int32):
            raise OnecurveError(f"table {self.table!r}: ids must be integers (torch.int64), got {ids.dtype}")
        if isinstance(ids, FakeTensor):  # how many are distinct is not known
            rows = torch.empty(ids.numel(), self.width, device=ids.device).requires_grad_(torch.is_grad_enabled())
            return rows, torch.arange(ids.numel(), device=ids.device).view_as(ids), torch.empty(0)
        with _disable_current_modes():  # a mode that recomputes forward must not see how rows are found
            distinct, index = torch.unique(ids.detach().to("cpu", torch.int64), return_inverse=True)
            return self.source.rows(self, distinct, ids.device), index.to(ids.device), distinct


class Embedding(EmbeddingTable):
    """Looks up one row per id, like `torch.nn.Embedding`, in a table without a fixed number of rows.

    Rows are not parameters of the model: they are in no `state_dict`, and the table has its own optimizer. A row is
    created when a step first updates it; before that it has a first value that depends on the job's seed, the table's
    name and the id alone. Learning-rate schedule, clipping and skipped steps apply to rows as to parameters.

    Args:
        table: Name of the table. Modules with the same name share its rows.
        width: Numbers per row.
        optimizer: `onecurve.params.SGD`, `RowwiseAdagrad` or `Adam`. Default: `RowwiseAdagrad()`.
        admit_after: Number of the update at which an id gets a row. With 2, ids that occur in only one step get none.
            Before that, an id has its first value, and its gradients are dropped. Default: 1.
        evict_after: A row is removed if no step updated it during more than this number of optimizer steps; its id then
            has its first value again and counts as new. Default: None, rows are never removed.

    Shape:
        ids: any shape, int64. Output: the shape of `ids`, with `width` added.

    Example::

        class Clicks(nn.Module):
            def __init__(self):
                super().__init__()
                self.item = oc.params.Embedding("item", 64)
                self.head = nn.Linear(64, 1)

            def forward(self, item):
                return self.head(self.item(item)).squeeze(-1)
    """

    def __init__(
        self,
        table: str,
        width: int,
        optimizer: RowOptimizer | None = None,
        admit_after: int = 1,
        evict_after: int | None = None,
    ) -> None:
        super().__init__(table, width, optimizer, admit_after, evict_after)

    def forward(self, ids: Tensor) -> Tensor:
        rows, index, _ = self._take(ids)
        return F.embedding(index, rows)


class EmbeddingBag(EmbeddingTable):
    """Reduces the rows of a bag of ids to one vector, like `torch.nn.EmbeddingBag`; see `Embedding` for its rows.

    Args:
        table: Name of the table. Modules with the same name share its rows.
        width: Numbers per row.
        mode: How the rows of a bag are reduced: `"sum"`, `"mean"` or `"max"`. Default: `"mean"`.
        optimizer: `onecurve.params.SGD`, `RowwiseAdagrad` or `Adam`. Default: `RowwiseAdagrad()`.
        padding_idx: An id that is left out of its bag, so that bags of one batch may differ in size. Default: None.
        admit_after: Number of the update at which an id gets a row, see `Embedding`. Default: 1.
        evict_after: Number of optimizer steps without an update after which a row is removed. Default: None, never.

    Shape:
        ids: `[B, L]`, a bag in each row; or `[N]` together with `offsets` `[B]`, where each bag begins. Output:
        `[B, width]`.

    Example::

        user = oc.params.EmbeddingBag("user", 64, mode="mean", padding_idx=-1)
        user(torch.tensor([[7, 12, -1], [7, -1, -1]]))  # [2, 64]
    """

    def __init__(
        self,
        table: str,
        width: int,
        mode: BagMode = "mean",
        optimizer: RowOptimizer | None = None,
        padding_idx: int | None = None,
        admit_after: int = 1,
        evict_after: int | None = None,
    ) -> None:
        super().__init__(table, width, optimizer, admit_after, evict_after)
        if mode not in ("sum", "mean", "max"):
            raise OnecurveError(f"table {table!r}: mode must be 'sum', 'mean' or 'max', got {mode!r}")
        self.mode, self.padding_idx = mode, padding_idx

    def extra_repr(self) -> str:
        padding = f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        return f"{super().extra_repr()}, mode={self.mode!r}{padding}"

    def forward(self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        rows, index, distinct = self._take(ids)
        return F.embedding_bag(
            index,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            padding_idx=self._padding_index(distinct),
        )

    def _padding_index(self, distinct: Tensor) -> int | None:
        """The index of the row that is left out; None if no bag has it."""
        if self.padding_idx is None:
            return None
        found = (distinct == self.padding_idx).nonzero()
        return int(found) if found.numel() else None


def tables_of(model: nn.Module) -> dict[str, EmbeddingTable]:
    """Return the model's tables by name, each as its first module. Modules that share a table must agree on it."""
    tables: dict[str, EmbeddingTable] = {}
    for module in model.modules():
        if isinstance(module, EmbeddingTable):
            first = tables.setdefault(module.table, module)
            if first.settings_text != module.settings_text:
                raise OnecurveError(
                    f"table {module.table!r}: its modules differ ({first.settings_text} and {module.settings_text}); "
                    "give them the same width, optimizer and limits, or another name"
                )
    return tables


def refuse_unsuitable_tables(model: nn.Module, plan: Plan) -> None:
    """Refuse plans that split the model of which the tables are a part, or name tables that it does not have."""
    if (plan.mesh.tensor > 1 or plan.mesh.pipeline > 1) and (reason := why_tables_are_not_split(model)):
        raise OnecurveError(f"model: {reason}; use replicate or shard")
    names = list(tables_of(model)) if plan.tables else []
    for pattern in plan.tables:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OnecurveError(
                f"plan {plan}: tables: no embedding table of the model matches {pattern!r} (it has: "
                f"{', '.join(names) or 'none'})"
            )


def why_tables_are_not_split(model: nn.Module) -> str:
    """Say why `tensor` and `pipeline` are not possible; empty if the model has no tables."""
    if not (tables := tables_of(model)):
        return ""
    return (
        f"its embedding tables ({', '.join(tables)}) are shared by ranks that process different samples, but along "
        "'tensor' and 'pipeline' several ranks process the same"
    )


def connect(model: nn.Module, source: RowSource) -> None:
    """Let all tables of the model take their rows from here."""
    for module in model.modules():
        if isinstance(module, EmbeddingTable):
            module.source = source


def _check(table: Any, width: Any, optimizer: Any) -> None:
    if not isinstance(table, str) or not re.fullmatch(r"[\w-]+", table):
        raise OnecurveError(f"table: the name must consist of letters, digits, '_' and '-', got {table!r}")
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise OnecurveError(f"table {table!r}: width must be an integer of at least 1, got {width!r}")
    if optimizer is not None and not isinstance(optimizer, SGD | RowwiseAdagrad | Adam):
        raise OnecurveError(
            f"table {table!r}: optimizer must be onecurve.params.SGD, RowwiseAdagrad or Adam, got "
            f"{type(optimizer).__name__}"
        )

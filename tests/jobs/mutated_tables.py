"""The clicks with one fault injected into embedding tables; `onecurve check` must find it. Each is a function below."""

import sys
from pathlib import Path

import torch

import onecurve as oc
from onecurve.params import exchange, rows_ahead, tables

sys.path.insert(0, str(Path(__file__).parent))
import clicks


def ddp_factor_left_in() -> None:
    original = tables.Tables.end_round
    tables.Tables.end_round = lambda self, _: original(self, 1.0)


def duplicates_not_merged() -> None:
    def last_of_each(parts):
        return {int(each): row for ids, rows in parts for each, row in zip(ids, rows, strict=True)}

    def keep_last(parts):
        found = last_of_each(parts)
        rows = torch.stack(list(found.values())) if found else parts[0][1]
        return torch.tensor(list(found), dtype=torch.int64), rows

    tables.sum_by_id = exchange.sum_by_id = keep_last


def clipping_without_tables() -> None:
    original = tables.Tables.reduce
    tables.Tables.reduce = lambda self: 0 * original(self)


def rows_created_by_evaluation() -> None:
    original = tables.Tables.rows

    def create(self, table, ids, device):
        rows = original(self, table, ids, device)
        if not torch.is_grad_enabled():
            store = self._holder_of[table.table].stores[table.table]
            states = torch.zeros(len(ids), table.optimizer.state_width(table.width))
            store.put(ids, store.get(ids), states, store.epoch)
        return rows

    tables.Tables.rows = create


def schedule_without_tables() -> None:
    original = tables.Tables.update
    tables.Tables.update = lambda self, factor, _: original(self, factor, 1.0)


def rows_one_step_too_new() -> None:
    original = rows_ahead.RowsAhead.fetch

    def fetch_late(self, upcoming):
        original(self, {step: rounds for step, rounds in upcoming.items() if step < max(upcoming)})

    rows_ahead.RowsAhead.fetch = fetch_late


def none() -> None:
    pass


def job(fault: str, params: str = "none", staleness: int = 0) -> oc.Job:
    globals()[fault]()
    return clicks.job(params=params, staleness=staleness)

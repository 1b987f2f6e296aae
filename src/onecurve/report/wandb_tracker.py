"""Logs to Weights & Biases (extra `wandb`), offline unless WANDB_MODE says otherwise."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class WeightsAndBiases:
    """A tracker. Offline, `wandb sync RUN/wandb/offline-run-*` uploads a run later."""

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb
        self._run: Any = None

    def begin(self, folder: str, facts: Mapping[str, str | float]) -> None:
        if self._run is None:
            path = Path(folder).resolve()
            kept = path / "wandb-run"
            name = kept.read_text() if kept.is_file() else secrets.token_hex(4)
            kept.write_text(name)
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "onecurve"),
                name=path.name,
                id=name,
                resume="allow",
                dir=str(path),
                mode=None if "WANDB_MODE" in os.environ else "offline",
                settings=self._wandb.Settings(silent=True, console="off"),  # the terminal is the run's
            )
        self._run.config.update(dict(facts), allow_val_change=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def end(self, how: str) -> None:
        self._run.finish(exit_code=0 if how == "finished" else 1)
        self._run = None

"""Logs to MLflow (extra `mlflow`): to the server of MLFLOW_TRACKING_URI, or into the run's folder."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_PARAM = 500
"""Characters of a parameter's value that MLflow stores."""


class MLflow:
    """A tracker. A run that is continued goes on in the same MLflow run."""

    def __init__(self) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._client_of, self._metric = MlflowClient, Metric
        self._client: Any = None
        self._run_id = ""

    def begin(self, folder: str, facts: Mapping[str, str | float]) -> None:
        path = Path(folder).resolve()
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{path / 'mlflow.db'}"
        self._client = self._client or self._client_of(tracking_uri=uri)
        kept = path / "mlflow-run"
        if not self._run_id and kept.is_file():
            self._run_id = kept.read_text()
        if not self._run_id:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "onecurve")
            experiment = self._client.get_experiment_by_name(name)
            experiment_id = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
            self._run_id = self._client.create_run(experiment_id, run_name=path.name).info.run_id
            kept.write_text(self._run_id)
            for key, value in facts.items():
                self._client.log_param(self._run_id, key, str(value)[:_MAX_PARAM])
        self._client.update_run(self._run_id, status="RUNNING")

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items() if math.isfinite(value)]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, how: str) -> None:
        self._client.set_terminated(self._run_id, status="FINISHED" if how == "finished" else "KILLED")

"""The trackers of a run: those of the job, and those that the command names."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.tracker import Tracker
from onecurve.report.mlflow_tracker import MLflow
from onecurve.report.prometheus import Prometheus
from onecurve.report.tensorboard import TensorBoard
from onecurve.report.wandb_tracker import WeightsAndBiases

_KNOWN: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def open_trackers(wanted: Sequence[str | Tracker], port: int | None) -> list[Tracker]:
    """Make the trackers, each once. `port`: of the metrics for Prometheus; None: none are served."""
    names = list(dict.fromkeys(each for each in wanted if isinstance(each, str)))
    check_names(names)
    trackers = [*(_KNOWN[name]() for name in names), *(each for each in wanted if not isinstance(each, str))]
    return [*trackers, Prometheus(port)] if port is not None else trackers


def check_names(names: Sequence[str]) -> None:
    """Refuse names of trackers that there are not, and of those whose package is not installed."""
    for name in names:
        if name not in _KNOWN:
            raise OnecurveError(f"--track {name}: no such tracker ({nearest(name, _KNOWN)})")
        if find_spec(name) is None:  # the package has the same name
            raise OnecurveError(f"{name} is not installed: run pip install 'onecurve[{name}]', or do not track with it")

"""onecurve trains an ordinary PyTorch model on any cluster, with the loss curve of one device.

This module is the public interface. `Job` describes what to train; `run`, `plan`, `check`, `probe` and `export` do what
the commands of the same names do; `prepare` is for a training loop of your own. To read the code, start with
`onecurve.job.job` and `onecurve.verbs`.

Names are imported on first use, so that `import onecurve` does not import torch.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecurve import data, nn, params
    from onecurve.describe.cluster import Cluster
    from onecurve.describe.errors import OnecurveError
    from onecurve.describe.plan import Plan
    from onecurve.describe.tracker import Tracker
    from onecurve.job import loss, metric
    from onecurve.job.cache import Cache
    from onecurve.job.evaluate import Evaluate
    from onecurve.job.job import Job
    from onecurve.job.metric import Metric
    from onecurve.job.optimizer import LAMB, LARS, SGD, Adafactor, AdamW, Muon, Optimizer
    from onecurve.job.params import Params
    from onecurve.job.save import Save
    from onecurve.job.schedule import constant, cosine, linear, linear_scaling, sqrt_scaling
    from onecurve.job.weighted import Weighted
    from onecurve.verbs.batch_test import batch_test
    from onecurve.verbs.check import check
    from onecurve.verbs.doctor import doctor
    from onecurve.verbs.evaluate import evaluate
    from onecurve.verbs.export import export
    from onecurve.verbs.index import index
    from onecurve.verbs.int8 import evaluate_int8
    from onecurve.verbs.load import load
    from onecurve.verbs.plan import plan
    from onecurve.verbs.predict import predict
    from onecurve.verbs.prepare import prepare
    from onecurve.verbs.probe import probe
    from onecurve.verbs.range_test import range_test
    from onecurve.verbs.run import run
    from onecurve.verbs.status import status
    from onecurve.verbs.tune import tune
    from onecurve.verbs.why import why

__version__ = "0.1.0"

logging.getLogger("onecurve").addHandler(logging.NullHandler())  # silent unless the user or --verbose asks

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adafactor",
    "AdamW",
    "Cache",
    "Cluster",
    "Evaluate",
    "Job",
    "Metric",
    "Muon",
    "OnecurveError",
    "Optimizer",
    "Params",
    "Plan",
    "Save",
    "Tracker",
    "Weighted",
    "batch_test",
    "check",
    "constant",
    "cosine",
    "data",
    "doctor",
    "evaluate",
    "evaluate_int8",
    "export",
    "index",
    "linear",
    "linear_scaling",
    "load",
    "loss",
    "metric",
    "nn",
    "params",
    "plan",
    "predict",
    "prepare",
    "probe",
    "range_test",
    "run",
    "sqrt_scaling",
    "status",
    "tune",
    "why",
]

_HOMES = {
    "describe.cluster": ("Cluster",),
    "describe.errors": ("OnecurveError",),
    "describe.plan": ("Plan",),
    "describe.tracker": ("Tracker",),
    "job.cache": ("Cache",),
    "job.evaluate": ("Evaluate",),
    "job.job": ("Job",),
    "job.metric": ("Metric",),
    "job.optimizer": ("Adafactor", "AdamW", "LAMB", "LARS", "Muon", "Optimizer", "SGD"),
    "job.params": ("Params",),
    "job.save": ("Save",),
    "job.schedule": ("constant", "cosine", "linear", "linear_scaling", "sqrt_scaling"),
    "job.weighted": ("Weighted",),
    "verbs.batch_test": ("batch_test",),
    "verbs.check": ("check",),
    "verbs.doctor": ("doctor",),
    "verbs.evaluate": ("evaluate",),
    "verbs.export": ("export",),
    "verbs.index": ("index",),
    "verbs.int8": ("evaluate_int8",),
    "verbs.load": ("load",),
    "verbs.plan": ("plan",),
    "verbs.predict": ("predict",),
    "verbs.prepare": ("prepare",),
    "verbs.probe": ("probe",),
    "verbs.range_test": ("range_test",),
    "verbs.run": ("run",),
    "verbs.status": ("status",),
    "verbs.tune": ("tune",),
    "verbs.why": ("why",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("loss", "metric"):
        value: Any = import_module(f"onecurve.job.{name}")
    elif name in ("data", "nn", "params"):
        value = import_module(f"onecurve.{name}")
    elif name in _HOME_OF:
        value = getattr(import_module(f"onecurve.{_HOME_OF[name]}"), name)
    else:
        raise AttributeError(f"module 'onecurve' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

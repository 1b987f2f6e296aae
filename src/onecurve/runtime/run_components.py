"""What a run is built from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onecurve.apply.base_part import BasePart
from onecurve.cache.host_cache import HostCache
from onecurve.checkpoint.saver import SaveEvent
from onecurve.describe.job_facts import JobFacts
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.params.tables import Tables
from onecurve.runs.lock import RunLock
from onecurve.runtime.checkpoints import Checkpoints
from onecurve.runtime.loaders import Loaders
from onecurve.runtime.replicas import Replicas
from onecurve.runtime.saved_rows import SavedRows
from onecurve.runtime.straggler import StragglerDetector
from onecurve.train.early_stopping import BestTracker
from onecurve.train.manual_trainer import ManualTrainer
from onecurve.train.state import TrainState
from onecurve.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class RunComponents:
    """What a run is built from."""

    job: Job
    plan: Plan
    world: World
    device: Device
    data_rank: int
    part: BasePart
    tables: Tables | None
    """The model's embedding tables; None if it has none."""
    rows: SavedRows
    """Their rows in the run's checkpoints."""
    trainer: Trainer | ManualTrainer
    loaders: Loaders
    cache: HostCache | None
    """For remote data files; None if the job has none."""
    steps: int
    """Steps of the whole training."""
    host_cores: int
    """CPU cores of this host that the run may use."""
    epoch_samples: int
    """Samples of an epoch; 0 if the data has no end."""
    parameters: int
    checkpoints: Checkpoints | None
    """None if the run has no folder, or the job saves no checkpoints."""
    straggler: StragglerDetector
    replicas: Replicas
    best: BestTracker | None
    """None if the job has no evaluation."""
    state: TrainState
    """Where the training continues."""
    resumed: str = ""
    """What the run was resumed from, for a person; empty if it was not."""
    changed: str = ""
    """Which fields of the job were changed for this resume, for a person; empty if none was."""
    warning: str = ""
    facts: JobFacts
    """What was found out about the job."""
    fingerprint: Mapping[str, str]
    """Which job it is."""
    start_seconds: Mapping[str, float] = field(default_factory=dict)
    """What it took to build the run, by cause: `form` the process group, `build` the part, `load` a checkpoint."""
    process_bytes: int = 0
    """Bytes of the device that the process used before it built its part."""
    lock: RunLock | None = None
    on_event: Callable[[SaveEvent], None]
    """Called with every event of a save."""
    on_interruption: Callable[[], None]
    """Called at the end, if the run was stopped before its last step."""
    hand_over: Callable[[], None]
    """Called when another generation is to go on with what has just been kept."""

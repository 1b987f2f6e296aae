"""Submits a run to Slurm as a batch job that starts itself again, and follows its log."""

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onecurve.describe.errors import InterruptError, OnecurveError

_POLL_SECONDS = 1.0
_FIRST_ONLY = ("--fresh", "--change")
"""Options for the first execution: a run that is started again continues."""
_FLAGS = ("--fresh",)
"""Those that have no value."""

_BODY = """\
#!/usr/bin/env bash
# Written by onecurve. Submit it again with: sbatch {script}
#SBATCH --job-name={name} --output={log} --open-mode=append --requeue --signal=TERM@120 --ntasks-per-node=1
#SBATCH {options}
cd {here}
touch {started}
first=()
[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] || first=({first})
is_cancelled=
trap 'is_cancelled=1' TERM  # only scancel without --signal sends it to this script
status=0
srun --no-kill --kill-on-bad-exit=0 --wait=0 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
  {command} "${{first[@]}}" || status=$?

# The status of srun is that of its worst task, even if the run has ended well without it.
has_ended() {{
  [ {summary} -nt {started} ] && grep -Eq '"ended": ?"('"$1"')"' {summary}
}}
if has_ended 'finished|early_stopping'; then exit 0; fi
if [ -z "$is_cancelled" ] && {{ [ $status -eq 75 ] || has_ended 'SIGTERM|SIGHUP'; }}; then
  echo "onecurve: stopped and saved; the job is queued again"
  trap '' TERM
  scontrol requeue "$SLURM_JOB_ID"
  # Slurm holds a job that was queued again for two minutes, unless it is told otherwise once this script has ended.
  # Not at once: a node refuses a job whose credential was issued in the second in which the job was killed there.
  setsid bash -c 'for _ in {{1..40}}; do
    sleep 0.5
    [ "$(squeue -h -j "$0" -o %T)" = PENDING ] && scontrol update JobId="$0" StartTime=now+5 && break
  done' "$SLURM_JOB_ID" > /dev/null 2>&1 &
fi
exit $status
"""


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch job, as absolute paths."""

    script: Path
    log: Path
    started: Path
    """Its time is that of the job's last start."""
    summary: Path
    """In it the run says how it ended."""


def submit(options: str, arguments: Sequence[str], files: BatchFiles) -> int:
    """Write the batch script and submit it; return the number of the job.

    `options`: of sbatch. `arguments`: of onecurve, from the verb on.
    """
    if shutil.which("sbatch") is None:
        raise OnecurveError("--slurm: there is no command 'sbatch' here; use it on a host of a Slurm cluster")
    try:
        files.script.parent.mkdir(parents=True, exist_ok=True)
        files.script.write_text(batch_script(options, arguments, files))
    except OSError as error:
        raise OnecurveError(f"{files.script}: cannot be written ({error.strerror}); give another --out") from None
    done = subprocess.run(["sbatch", "--parsable", str(files.script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OnecurveError(f"--slurm: sbatch has refused {files.script}: {done.stderr.strip()}")
    return int(done.stdout.strip().partition(";")[0])


def batch_script(options: str, arguments: Sequence[str], files: BatchFiles) -> str:
    """The text of the batch script."""
    always, first = _split_first(arguments)
    return _BODY.format(
        script=shlex.quote(str(files.script)),
        name=shlex.quote(f"onecurve-{files.script.parent.name}"),
        log=shlex.quote(str(files.log)),
        options=options,
        here=shlex.quote(str(Path.cwd())),
        started=shlex.quote(str(files.started)),
        summary=shlex.quote(str(files.summary)),
        command=shlex.join([sys.executable, "-m", "onecurve", *always]),
        first=shlex.join(first),
    )


def _split_first(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of every execution, and those of the first one only."""
    always: list[str] = []
    first: list[str] = []
    words = iter(arguments)
    for word in words:
        name = word.partition("=")[0]
        if name not in _FIRST_ONLY:
            always.append(word)
            continue
        first.append(word)
        if word == name and name not in _FLAGS:
            first.append(next(words))
    return always, first


def follow(job: int, log: Path, show: Callable[[str], None]) -> bool:
    """Show what the job writes to its log until it has ended; return True if it ended well.

    Raises InterruptError on Ctrl-C; the job goes on.
    """
    try:
        with log.open("a+", errors="replace") as opened:
            opened.seek(0, 2)
            while True:
                state = _state(job)
                show(opened.read())
                if state not in _ACTIVE:
                    return state == "COMPLETED"
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        raise InterruptError(
            f"job {job} goes on: follow it with 'tail -f {log}', end it with 'scancel {job}', save it and queue it "
            f"again with 'scancel --signal=TERM {job}'",
            "SIGINT",
        ) from None


_ACTIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "RESIZING", "SUSPENDED", "STOPPED", ""}
"""States of a job that has not ended; empty: Slurm could not be asked."""


def _state(job: int) -> str:
    done = subprocess.run(["scontrol", "show", "job", str(job)], capture_output=True, text=True, check=False)
    if "Invalid job id" in done.stderr:
        return "UNKNOWN"
    found = re.search(r"JobState=(\w+)", done.stdout)
    return found[1] if found else ""

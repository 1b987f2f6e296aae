"""onecurve run --slurm: submit the run to Slurm, and follow it."""

from collections.abc import Callable, Sequence

from onecurve.hosts.slurm import BatchFiles, follow, submit
from onecurve.job.script_path import script_path
from onecurve.runs.folder import SLURM_LOG, SLURM_SCRIPT, SLURM_STARTED, SUMMARY, refuse_foreign_folder
from onecurve.verbs.run import run_folder


def submit_run(
    options: str,
    script: str,
    out: str | None,
    arguments: Sequence[str],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> bool:
    """Submit `onecurve ARGUMENTS` as a batch job, and follow it until it has ended; return True if it ended well.

    `options`: of sbatch. `say`: told the number of the job. `show`: gets what the job prints.
    """
    folder = run_folder(script_path(script, "run"), out).resolve()
    refuse_foreign_folder(folder)
    files = BatchFiles(
        script=folder / SLURM_SCRIPT,
        log=folder / SLURM_LOG,
        started=folder / SLURM_STARTED,
        summary=folder / SUMMARY,
    )
    job = submit(options, arguments, files)
    say(f"submitted job {job}; its log is {files.log}")
    return follow(job, files.log, show)

"""What a check has found so far, in a folder that outlives its ranks: if a plan ends them, new ranks check the rest."""

import json
from dataclasses import dataclass
from pathlib import Path

from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.convert import from_plain, to_plain
from onecurve.describe.plan import Precision
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.verdict import CheckResult, Verdict


@dataclass(frozen=True)
class CheckAgenda:
    """The plans to check, and what is known before any of them runs."""

    plans: tuple[ResolvedPlan, ...]
    refused: tuple[Verdict, ...]
    """Verdicts on plans that the user chose and onecurve does not run."""
    notes: tuple[str, ...]
    """Plans of the matrix that were left out, with the reasons."""
    changed_buffers: ChangedBuffers
    """The buffers that forward changes."""


@dataclass(frozen=True)
class Findings:
    """What the ranks knew after a plan."""

    steps: int
    limit: float
    notes: tuple[str, ...]


class CheckJournal:
    """The folder of one check. Only the first rank and the launcher write to it, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def references(self) -> Path:
        """The folder of the one-device runs."""
        path = self.folder / "references"
        path.mkdir(exist_ok=True)
        return path

    @property
    def agenda(self) -> CheckAgenda | None:
        path = self.folder / "agenda.json"
        return from_plain(CheckAgenda, json.loads(path.read_text()), "agenda") if path.exists() else None

    def set_agenda(self, agenda: CheckAgenda) -> None:
        (self.folder / "agenda.json").write_text(json.dumps(to_plain(agenda)))

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts so far, in the order of the agenda."""
        path = self._verdicts_file
        lines = path.read_text().splitlines() if path.exists() else []
        return [from_plain(Verdict, json.loads(line), "verdict") for line in lines]  # Python's JSON keeps NaN

    def begin(self, plan: str) -> None:
        """Note which plan runs now."""
        (self.folder / "running").write_text(plan)

    def add(self, verdict: Verdict) -> None:
        with self._verdicts_file.open("a") as file:
            file.write(json.dumps(to_plain(verdict)) + "\n")
        (self.folder / "running").unlink(missing_ok=True)

    @property
    def running(self) -> str:
        """The plan that was running when the ranks ended; empty if none was."""
        path = self.folder / "running"
        return path.read_text() if path.exists() else ""

    def set_findings(self, findings: Findings) -> None:
        (self.folder / "findings.json").write_text(json.dumps(to_plain(findings)))

    def result(self, precision: Precision) -> CheckResult:
        """Put together the result of a check that is complete."""
        agenda = self.agenda
        assert agenda is not None
        findings = from_plain(Findings, json.loads((self.folder / "findings.json").read_text()), "findings")
        verdicts = (*agenda.refused, *self.verdicts)
        return CheckResult(precision, findings.steps, findings.limit, verdicts, (*agenda.notes, *findings.notes))

    @property
    def _verdicts_file(self) -> Path:
        return self.folder / "verdicts.jsonl"

"""A pytest plug-in that records passed tests by the commit's tree, so that an interrupted run continues.

The environment variable PROOFS is the folder of all records, in a clone. `pytest -p tests.kept --record NAME` appends
to PROOFS/TREE/NAME.jsonl and skips tests that passed there. In a clone with uncommitted changes, nothing is recorded.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

FIGURES = "figures"  # the property of a case that contains measurements
OUTER = "template"  # the record whose cases run all other cases


@dataclass(frozen=True)
class Case:
    """A case of a test: id, outcome (passed, failed, skipped), seconds, reason for skipping, measurements."""

    id: str
    outcome: str
    seconds: float
    skipped: str = ""
    figures: str = ""


def tree(folder: Path) -> str:
    """Return the tree hash of the clone around `folder`; empty if it has changes or isn't a clone."""
    git = ("git", "--no-optional-locks", "-C", str(folder))
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    head = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], capture_output=True, text=True)
    return "" if status.returncode or status.stdout or head.returncode else head.stdout.strip()


def cases(record: Path) -> Iterator[Case]:
    """Yield the last outcome of each case; incomplete lines don't count."""
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True) if record.exists() else []
    found = [Case(**json.loads(line)) for line in lines if line.endswith("}\n")]
    yield from {case.id: case for case in found}.values()


class Kept:
    """The cases that passed before this run of pytest, and a record of the cases that pass in it."""

    def __init__(self, records: Path, name: str, *, anew: bool, writes: bool) -> None:
        records.mkdir(parents=True, exist_ok=True)
        self.records, self.tree = records, tree(records)
        self.record = records / self.tree / f"{name}.jsonl"
        if anew and writes and self.tree:
            for record in self.record.parent.glob("*.jsonl"):
                record.unlink()
        self.passed = {one.id for one in cases(self.record) if one.outcome == "passed"} if self.tree else set()
        self.writes = writes and bool(self.tree)
        self.reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_report_header(self) -> str:
        if not self.tree:
            return "proofs: results aren't recorded, because the clone has uncommitted changes"
        return f"proofs: skipping {len(self.passed)} cases that passed on this tree; to repeat them, use --anew"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self.passed])
        items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a case after its teardown if the clone hasn't changed since the start of the run."""
        self.reports.setdefault(report.nodeid, []).append(report)
        if report.when == "teardown":
            told = case(self.reports.pop(report.nodeid))
            if self.writes and (told.outcome != "passed" or tree(self.records) == self.tree):
                self.record.parent.mkdir(exist_ok=True)
                with self.record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(told)) + "\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed:
            session.exitstatus = pytest.ExitCode.OK


def case(reports: list[pytest.TestReport]) -> Case:
    """Return the combined result of setup, call and teardown."""
    outcomes = {report.outcome for report in reports}
    outcome = next(one for one in ("failed", "skipped", "passed") if one in outcomes)
    why = next((report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)), "")
    figures = ", ".join(str(value) for name, value in reports[-1].user_properties if name == FIGURES)
    seconds = round(sum(report.duration for report in reports), 2)
    return Case(reports[0].nodeid, outcome, seconds, why.removeprefix("Skipped: "), figures)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kept proofs")
    group.addoption("--record", metavar="NAME", default=OUTER, help="name of the record of these tests")
    group.addoption("--anew", action="store_true", help="repeat tests that passed on this tree")


def pytest_configure(config: pytest.Config) -> None:
    writes = not hasattr(config, "workerinput")  # an xdist worker reports to its controller
    name, anew = config.getoption("record"), config.getoption("anew")
    config.pluginmanager.register(Kept(Path(os.environ["PROOFS"]), name, anew=anew, writes=writes))


def options(name: str) -> tuple[str, ...]:
    """Return the options for a pytest run inside a proof, whose cases are also recorded."""
    return ("-p", "tests.kept", "--record", name) if "PROOFS" in os.environ else ()

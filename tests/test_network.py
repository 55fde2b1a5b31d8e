"""The planner's formulas on emulated networks: one small cell measured here, and the page that holds all of them."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from launcher.tests.running import processes
from tests.conftest import ROOT

PAGE = ROOT / "launcher/docs/planner-proof.md"
BYTES_APART, SECONDS_APART = 1.0, 10.0  # percent
SECONDS = 300  # for the small cell, which needs two on an idle machine
HEAD = "| Mbit/s | Machines | All-reduce by | MiB sent | predicted | error, % | Seconds | predicted | error, % |"

# Not by way of sys.path: the launcher gives that to its replicas, and this folder would be on each command line.
spec: Any = spec_from_file_location("hosts", ROOT / "benchmarks/network/hosts.py")
hosts = sys.modules["hosts"] = module_from_spec(spec)
spec.loader.exec_module(hosts)


def measure(*arguments: str, path: str = os.environ["PATH"]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "benchmarks/network/measure.py", *arguments]
    environment = os.environ | {"PATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)


def rows(text: str) -> list[list[str]]:
    """The cells of the one table in a text."""
    head, rule, *lines = [line for line in text.splitlines() if line.startswith("|")]
    assert (head, set(rule)) == (HEAD, set("|-:"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def apart(measured: str, predicted: str) -> float:
    """Percent of the prediction."""
    return 100 * (float(measured) / float(predicted) - 1)


@pytest.fixture
def emulated() -> None:
    try:
        hosts.way(os.environ | {"PATH": hosts.searched(os.environ["PATH"])})
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("emulated")
def test_reducers_receive_the_bytes_that_the_planner_predicts_and_leave_nothing_behind() -> None:
    cards = Path("/proc/net/dev").read_text().count("\n")
    cell = ("--machines", "3", "--reducers", "2", "--mbit", "200", "--mib", "1", "--repetitions", "3")
    done = measure(*cell, "--without-ring")
    assert done.returncode == 0 or "out of bounds" in done.stderr, done.stderr  # in time: this machine is not idle
    ((mbit, machines, by, _, _, error, *_),) = rows(done.stdout)
    assert (mbit, machines, by) == ("200", "3", "2 reducers")
    assert abs(float(error)) <= BYTES_APART, done.stderr
    assert not processes(str(ROOT / "benchmarks/network"))
    assert Path("/proc/net/dev").read_text().count("\n") == cards
    assert not any(Path("/run/netns").glob("host*"))


def test_a_machine_without_the_tools_says_what_to_install(tmp_path: Path) -> None:
    sentence = "hosts can't be emulated without setpriv, unshare, nsenter, mount, ip, tc; on Linux, install iproute2"
    assert hosts.missing(str(tmp_path)).startswith(sentence)


def test_a_machine_that_permits_no_networks_says_what_it_needs(tmp_path: Path) -> None:
    for tool in hosts.TOOLS:
        (tmp_path / tool).write_text("#!/bin/sh\necho not permitted >&2\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    done = measure(path=str(tmp_path))
    assert done.returncode == 1
    assert "run as root with CAP_NET_ADMIN" in done.stderr
    assert "(as root: not permitted; as a user: not permitted)" in done.stderr


def test_on_the_page_the_planner_is_within_its_bounds() -> None:
    for row in rows(PAGE.read_text(encoding="utf-8")):
        sent, predicted, error, seconds, seconds_predicted, seconds_error = row[3:]
        assert abs(float(error)) <= BYTES_APART, row
        assert abs(float(seconds_error)) <= SECONDS_APART, row
        assert float(error) == pytest.approx(apart(sent, predicted), abs=0.2)  # as far as the digits shown allow
        assert float(seconds_error) == pytest.approx(apart(seconds, seconds_predicted), abs=0.3)


def test_the_page_has_every_cell() -> None:
    ways = ["ring", "1 reducer", *(f"{count} reducers" for count in range(2, 7))]
    expected = [[mbit, machines, way] for mbit in ("100", "200") for machines in "23456" for way in ways]
    assert [row[:3] for row in rows(PAGE.read_text(encoding="utf-8"))] == expected
    assert f"]({PAGE.with_suffix('.svg').name})" in PAGE.read_text(encoding="utf-8")
    assert PAGE.with_suffix(".svg").exists()

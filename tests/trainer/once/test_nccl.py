"""Reducers that are paid for are used, or are said not to be, by what NCCL logs."""

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from trainer.vertex import nccl, reducers
from trainer.vertex.errors import TrainerError
from trainer.vertex.nccl import Log

HERE = "a-host:12:34 [0] NCCL INFO "
BOTH = "NET/Plugin: Loaded net plugin FastSocket (v6)\nNET/Plugin: Loaded collnet plugin RS (v6)\n"
CONNECTED = f"{HERE}CollNet 00/0 : 0 [send] via COLLNET/RS/0\n{HERE}CollNet 01/0 : 0 [receive] via COLLNET/RS/0\n"
WAY = "AllReduce: {} Bytes -> Algo {} proto SIMPLE channel{{Lo..Hi}}={{0..1}}\n"


MISSING = "".join(f"NET/Plugin: Failed to find ncclCollNetPlugin_v{version} symbol.\n" for version in (10, 9, 8, 7))


@pytest.mark.parametrize(
    ("log", "used", "said"),
    [
        (
            BOTH + CONNECTED + WAY.format(64 << 20, "COLLNET_CHAIN"),
            True,
            "4 reducers are in use (COLLNET_CHAIN; 2 of 16",
        ),
        (
            BOTH + CONNECTED + WAY.format(8, "COLLNET_CHAIN") + WAY.format(64 << 20, "RING"),
            False,
            "used: 2 of 16 ranks connect on behalf of their machines, but NCCL prefers RING; remove pool 2, or use a",
        ),
        (
            BOTH + CONNECTED + WAY.format(64 << 20, "RING") + "NCCL_ALGO set by environment to Ring",
            False,
            "not used: NCCL_ALGO selects another algorithm; leave NCCL_ALGO unset",
        ),
        (
            BOTH + CONNECTED + WAY.format(64 << 20, "RING") + "NCCL_ALGO set by environment to ^Tree,CollNetChain",
            False,
            "but NCCL prefers RING",
        ),
        (BOTH + CONNECTED + WAY.format(64 << 20, "3"), True, "this NCCL version doesn't log reducer usage"),  # 2.23
        (
            BOTH + CONNECTED + nccl.FAILED + WAY.format(64 << 20, "COLLNET_CHAIN"),
            True,
            "reducers are in use (COLLNET_CHAIN)",
        ),
        (
            BOTH + CONNECTED + WAY.format(8, "TREE"),
            False,
            "the largest all-reduce has only 8 bytes; use a larger",
        ),
        (
            BOTH + CONNECTED,
            True,
            "4 reducers are connected (2 of 16 ranks connect on behalf of their machines);",
        ),
        (
            BOTH + CONNECTED + nccl.FAILED,
            False,
            "4 reducers are billed but not used: NCCL can't set up the reducers",
        ),
        (MISSING + BOTH + nccl.FAILED, False, "NCCL can't set up the reducers; check that NCCL_COLLNET_ENABLE is 1"),
        (
            MISSING + BOTH,
            False,
            "NCCL has loaded the plug-in, but hasn't connected to the reducers; check that NCCL_COLLNET_ENABLE is 1",
        ),
        (
            BOTH.partition("\n")[0],
            False,
            "NCCL has loaded the plug-in's network part, but not its CollNet part for reducers; see",
        ),
        (MISSING + BOTH.partition("\n")[0], False, "this NCCL version doesn't support the CollNet part of the plug-in"),
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal", False, "NCCL finds no plug-in; install"),
        ("NET/Plugin : No plugin found (libnccl-net.so), using", False, "NCCL finds no plug-in; install"),
        ("NET/Plugin : No plugin found, using internal implementation", False, "NCCL finds no plug-in; install"),
        ("NET/Plugin: libX.so.1: cannot open shared object file", False, "the plug-in can't be opened; install"),
        (
            "NET/Plugin: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /usr/lib/libnccl-net.so)",
            False,
            "the plug-in can't be opened; install its dependencies in the image",
        ),
        (
            "NET/Plugin: libnccl-net.so: libX.so.1: cannot open shared object file",
            False,
            "the plug-in can't be opened",
        ),
        ("NET/FastSocket disabled", False, "the plug-in doesn't start"),
        ("Failed to initialize NET plugin FastSocket", False, "the plug-in doesn't start"),
        ("Failed to initialize NET plugin IB\n" + BOTH, False, "loaded the plug-in, but hasn't connected"),
        ("Communicator has 1 nodes which is less than CollNet node threshold 2", False, "two or more machines"),
        ("CollNet currently only supports up to 8 GPUs per node, disabling CollNet", False, "up to 8 GPUs"),
        (
            "NET/Plugin: External network plugin libnccl-net.so is unsupported",
            False,
            "doesn't support any version of the plug-in",
        ),
        (MISSING.replace("Coll", ""), False, "NCCL doesn't support any version of the plug-in; see /app"),
        ("NCCL version 2.29.7", False, "NCCL's log doesn't mention the reducers; see /app/reduction-server.txt"),
        (
            "",
            None,
            "NCCL's log doesn't show whether the 4 reducers are used: NCCL hasn't written a log to /tmp; check that",
        ),
    ],
)
def test_the_log_tells_whether_they_are_used_or_why_not(log: str, used: bool | None, said: str) -> None:
    ours = nccl.parse(log)
    use = nccl.judge(ours, 4, 16, 2 * (ours.connected and not ours.failed))
    assert use.used == used
    assert said in str(use)
    assert use.used or "up to 8 GPUs" in str(nccl.judge(ours, 4, 16, 0, gpus=16)) or not ours.is_ours
    # A trainer that knows its own log alone does not know whether another rank of its machine connects.
    hidden = ours.cause == nccl.NOT_CONNECTED and not ours.connected
    assert nccl.judge(ours, 4).used == (None if hidden else used)


def test_the_log_of_rank_0_alone_tells_which_way_its_all_reduces_take() -> None:
    for way, used in (("COLLNET_CHAIN", True), ("RING", False)):
        use = nccl.judge(nccl.parse(BOTH + WAY.format(64 << 20, way)), 4)  # another rank has connected
        assert use.used == used
        assert way in str(use)
        assert "connect" not in str(use)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of NCCL's log, which is in a folder of the test."""
    monkeypatch.setitem(nccl.LOGS, "NCCL_DEBUG_FILE", f"{tmp_path}/nccl.%h.%p")
    return nccl.LOGS


def own_log(folder: Path) -> Path:
    """The log of this process."""
    return folder / f"nccl.{os.uname().nodename.partition('.')[0]}.{os.getpid()}"


def test_the_log_of_this_process_is_read_and_what_the_user_has_set_stays(tmp_path: Path, logs: dict[str, str]) -> None:
    environ: dict[str, str] = {}
    nccl.watch(environ)
    assert environ == {"NCCL_COLLNET_ENABLE": "1", **logs}
    own_log(tmp_path).write_text(BOTH + CONNECTED + WAY.format(1 << 20, "COLLNET_DIRECT"))
    ours = nccl.read_log(environ)
    assert (ours.is_ours, ours.connected, ours.failed, ours.way, ours.bytes) == (
        True,
        1,
        False,
        "COLLNET_DIRECT",
        1 << 20,
    )
    theirs = {"NCCL_DEBUG": "WARN", "NCCL_COLLNET_ENABLE": "0"}
    nccl.watch(theirs)
    assert theirs == {"NCCL_DEBUG": "WARN", "NCCL_COLLNET_ENABLE": "0"}
    assert nccl.read_log(theirs) == Log(is_ours=False, cause=nccl.LOG_REDIRECTED)


@pytest.mark.parametrize("name", nccl.LOGS)
def test_a_log_that_may_say_less_is_not_read(tmp_path: Path, logs: dict[str, str], name: str) -> None:
    own_log(tmp_path).write_text("NCCL version 2.29.7\n")
    assert nccl.judge(nccl.read_log(logs), 4).used is False
    use = nccl.judge(nccl.read_log({**logs, name: "WARN"}), 4)
    assert use.used is None
    assert str(use).endswith("unset all variables whose names begin with NCCL_DEBUG")


def test_once_it_is_read_the_log_no_longer_grows(tmp_path: Path, logs: dict[str, str]) -> None:
    path = own_log(tmp_path)
    with path.open("w", buffering=1) as nccls:
        nccls.write("a line\n")
        nccl.end_log(logs)
        nccls.write("another\n")
        assert path.read_text() == "a line\n"
    theirs = tmp_path / "theirs"
    with theirs.open("w", buffering=1) as file:
        nccl.end_log({**logs, "NCCL_DEBUG_FILE": str(theirs)})
        file.write("kept\n")
    assert theirs.read_text() == "kept\n"


def settled(environ: Mapping[str, str], *, required: bool) -> dict[str, float]:
    """As rank 0 of 16, of which one is connected."""

    def add(number: int) -> int:
        assert type(number) is int  # TensorFlow adds no truth values
        return number

    return reducers.settle(1, environ, add, rank=0, ranks=16, gpus=8, required=required)


def test_required_reducers_that_are_idle_end_the_run_with_a_code_of_their_own(
    tmp_path: Path, logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reducers.IdleReducersError.exit_code == 78
    with pytest.raises(reducers.IdleReducersError):
        reducers.prepare(1, {}, rank=0, gpus=False, required=True)
    assert "1 reducers are not used: this run uses CPUs, but reducers" in capsys.readouterr().out
    with pytest.raises(TrainerError, match="the job doesn't have reducers"):
        reducers.prepare(0, {}, rank=0, gpus=True, required=True)
    own_log(tmp_path).write_text(BOTH)
    with pytest.raises(
        reducers.IdleReducersError, match="--require-reducers is set, but NCCL doesn't use the reducers"
    ):
        settled(logs, required=True)
    told = json.loads(capsys.readouterr().out)
    assert told["message"].startswith("1 reducers are billed but not used: NCCL has loaded")
    assert (told["severity"], told["reducers"]) == ("ERROR", "idle")  # what an alert looks for
    assert settled(logs, required=False) == {"reducers_in_use": 0.0}
    assert '"severity": "WARNING"' in capsys.readouterr().out
    own_log(tmp_path).write_text(BOTH + CONNECTED + WAY.format(1 << 20, "COLLNET_CHAIN"))
    assert settled(logs, required=True) == {"reducers_in_use": 1.0}
    assert '"reducers": "in use"' in capsys.readouterr().out
    assert settled({}, required=True) == {}  # what cannot be told is no fault
    assert '"reducers": "not known"' in capsys.readouterr().out


def test_all_machines_settle_what_became_of_them_and_the_chief_says_early_what_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reducers, "VERDICT", tmp_path / "verdict.txt")
    (tmp_path / "verdict.txt").write_text("no library: net , CollNet \nthere is no NCCL here: reducers would be idle\n")
    environ: dict[str, str] = {}
    reducers.prepare(1, environ, rank=0, gpus=True, required=True)
    assert environ["NCCL_COLLNET_ENABLE"] == "1"
    assert "1 reducers are not used: there is no NCCL here" in capsys.readouterr().out
    added = [0, 0]  # numbers of each rank: who adds fewer than the others would leave them waiting

    def add(rank: int, number: int) -> int:
        added[rank] += 1
        return number

    for rank, its_own in enumerate((environ, {})):  # whatever this machine's image has
        reducers.settle(1, its_own, partial(add, rank), rank=rank, ranks=2, gpus=8, required=False)
    assert added == [3, 3]


def test_a_job_without_reducers_hears_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    environ: dict[str, str] = {}
    reducers.prepare(0, environ, rank=0, gpus=True, required=False)
    assert (environ, reducers.settle(0, {}, lambda n: n, rank=0, ranks=1, gpus=8, required=False)) == ({}, {})
    assert capsys.readouterr().out == ""

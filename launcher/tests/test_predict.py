"""`predict`: a serving container's command, started with the service's variables, asked, and stopped."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, SOURCE, deadline, processes

CONTAINER = '''
"""A container of somebody's own: it doubles numbers, and does as it is told by its first argument."""
import contextlib, json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200 if self.path == os.environ["AIP_HEALTH_ROUTE"] else 404, {})
    def do_POST(self):
        assert self.path == os.environ["AIP_PREDICT_ROUTE"] and os.listdir(os.environ["AIP_STORAGE_URI"]) == ["model"]
        instances = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        behaves = {
            "well": (200, {"predictions": [2 * one for one in instances]}),
            "short": (200, {"predictions": []}),
            "refuses": (422, {"error": "not such numbers"}),
        }
        self.reply(*behaves[sys.argv[1]])
    def reply(self, status, content):
        with contextlib.suppress(ConnectionError):  # who asked may have waited too long
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())
    def log_message(self, *_): pass

if sys.argv[1] == "ends":
    sys.exit("no weights")
assert "SECRET" not in os.environ
print("a line of the container", flush=True)
HTTPServer(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), Handler).serve_forever()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported/model").touch()
    (tmp_path / "container.py").write_text(CONTAINER)
    (tmp_path / "sample.json").write_text('{"instances": [1, 2]}')
    return tmp_path


def start(folder: Path, words: Sequence[str], behaves: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "vertex_launch", "predict", *words, "--command", f"python container.py {behaves}"]
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "SECRET": "s", "VERTEX_STATE_DIR": "state"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def predict(folder: Path, *words: str, behaves: str = "well", given: str = "") -> tuple[int, str, str]:
    process = start(folder, words or ("exported", "sample.json"), behaves)
    out, err = process.communicate(given, timeout=DEADLINE)
    assert "vertex_launch/" not in err  # no traceback of ours
    return process.returncode, out, err


def test_a_container_is_asked_and_stopped(folder: Path) -> None:
    code, out, err = predict(folder)
    assert (code, json.loads(out)) == (0, {"predictions": [2, 4]})
    assert err == "a line of the container\n"
    assert ((folder / "state").exists(), (folder / ".vertex").exists()) == (True, False)
    assert not processes("container.py", str(folder))


def test_a_sample_may_be_a_list_and_come_from_standard_input(folder: Path) -> None:
    assert json.loads(predict(folder, "exported", "-", given="[3]")[1]) == {"predictions": [6]}


@pytest.mark.parametrize(
    ("behaves", "fault"),
    [
        ("ends", "the container exited with code 1 before it was healthy; see its output above"),
        ("short", 'the response isn\'t {"predictions": [...]} with 2 predictions, one for each instance'),
        ("refuses", ":predict: 422: not such numbers"),
    ],
)
def test_a_container_that_vertex_would_not_take_is_told(folder: Path, behaves: str, fault: str) -> None:
    code, out, err = predict(folder, behaves=behaves)
    assert (code, out) == (1, "")
    assert fault in err
    assert not processes("container.py", str(folder))


def test_with_serve_it_answers_until_it_is_stopped(folder: Path) -> None:
    process = start(folder, ("exported", "--serve"), "well")
    assert process.stderr is not None
    with deadline():
        line = next(line for line in process.stderr if line.startswith("send a request with: "))
    address = line.split()[-1]
    request = urllib.request.Request(address, b'{"instances": [5]}')
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        assert json.loads(answer.read()) == {"predictions": [10]}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err.splitlines()[-1]) == (0, "stopped")
    assert not processes("container.py", str(folder))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("exported",), "the request is missing; specify a file with instances, or add --serve"),
        (("absent", "sample.json"), "absent: the folder doesn't exist"),
        (("exported", "absent.json"), "absent.json"),
        (("exported", "container.py"), "container.py: the file is not valid JSON"),
        (("exported", "-"), "-: the file doesn't contain instances"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(folder: Path, words: Sequence[str], fault: str) -> None:
    code, out, err = predict(folder, *words, given='{"instances": []}')
    assert (code, out) == (1, "")
    assert fault in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--command", "no-such-program"],
            "no-such-program: the command can't be started (No such file or directory)\n",
        ),
        ([], "the default server trainer/serving.py doesn't exist; specify a server with --command\n"),
    ],
)
def test_a_program_that_is_not_there_is_told(folder: Path, words: Sequence[str], said: str) -> None:
    command = [sys.executable, "-m", "vertex_launch", "predict", "exported", "sample.json", *words]
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (1, said)

"""The schema that `check` writes for job files is what the API's messages say, and finds mistakes in an editor."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from launcher.tests.running import DEADLINE, JOBS, SOURCE
from vertex_launch.job import json_schema

FIRST_LINE = "# yaml-language-server: $schema=schema.json"
DEFINITIONS = json_schema.job_schema()["definitions"]
SERVER = "yaml-language-server@1.25.0"  # the one in VS Code's extension for YAML
SECONDS = 120  # for anything the server is to say
NAMES = ("single", "workers", "reduction-server", "evaluator", "prebuilt", "tuning")

# A job, what is written there, what somebody writes instead, and what the editor says of it.
MISTAKES = [
    ("single", "machineType", "machinType", "Property machinType is not allowed."),
    ("workers", "replicaCount", "replica_count", "Property replica_count is not allowed."),
    ("workers", "timeout: 3600s", "timeout: 3600", 'Incorrect type. Expected "string".'),
    ("workers", "timeout: 3600s", "timeout: 1h", 'Must be seconds with the suffix s, such as "3600s".'),
    ("single", "NVIDIA_", "NVIDA_", "Value is not accepted."),
    ("workers", "Restart: true", 'Restart: "true"', 'Incorrect type. Expected "boolean".'),
    ("single", "replicaCount: 1", "replicaCount: one", "String does not match the pattern"),
    ("workers", "replicaCount: 1", "pythonPackageSpec: {}", "Property pythonPackageSpec is not allowed."),
    ("tuning", "parameterId", "parameterID", "Property parameterID is not allowed."),
    ("tuning", "trialJobSpec", "trialJobsSpec", "Property trialJobsSpec is not allowed."),
    ("tuning", "machineType", "machinType", "Property machinType is not allowed."),
]


def command(*words: str, folder: Path = SOURCE, limit: str = "unlimited") -> "subprocess.CompletedProcess[str]":
    """Run the launcher, whose files may have so many blocks; stderr has what it imports, too."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    started = ["sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", sys.executable, "-X", "importtime"]
    started += ["-m", "vertex_launch", *words]
    return subprocess.run(started, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE)


def checked(jobs: Path, limit: str = "unlimited") -> bool:
    """Check a folder of job files, which are good; returns whether the schema was made for that."""
    said = command("check", *map(str, sorted(jobs.rglob("*.yaml"))), folder=jobs, limit=limit)
    assert said.returncode == 0, said.stderr
    assert list(jobs.rglob(".schema*")) == []
    return "vertex_launch.job.json_schema" in said.stderr


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_every_job_file_names_the_schema_in_its_first_line(job: Any) -> None:
    assert job.read_text(encoding="utf-8").splitlines()[0] == FIRST_LINE


def test_check_writes_the_schema_where_it_is_missing_or_of_another_launcher(project: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(project / "jobs", tmp_path / "jobs"))
    schema = folder / "schema.json"
    assert not schema.exists()
    assert checked(folder)
    printed = command("schema").stdout
    assert schema.read_text(encoding="utf-8") == printed
    assert not checked(folder)
    schema.write_text(printed.replace("(", "(of another "), encoding="utf-8")
    assert checked(folder)
    assert schema.read_text(encoding="utf-8") == printed


def test_check_writes_no_schema_that_no_job_file_names_and_replaces_nobodys_own(project: Path, tmp_path: Path) -> None:
    job = text(project / "jobs", "single")
    own = tmp_path / "own/schema.json"
    own.parent.mkdir()
    own.write_text('{"title": "ours"}', encoding="utf-8")
    for number, line in enumerate(("", "# $schema=schema.json", FIRST_LINE.replace("schema.json", "other.json"))):
        (tmp_path / f"{number}.yaml").write_text(job.replace(FIRST_LINE, line), encoding="utf-8")
    (tmp_path / "own/single.yaml").write_text(job, encoding="utf-8")
    assert not checked(tmp_path)
    assert own.read_text(encoding="utf-8") == '{"title": "ours"}'
    assert {path.name for path in tmp_path.rglob("*.json")} == {"schema.json"}
    (tmp_path / "own/below").mkdir()
    (tmp_path / "own/below/single.yaml").write_text(job.replace("=schema", "=../../schema"), encoding="utf-8")
    assert checked(tmp_path)
    assert sorted(tmp_path.rglob("*.json")) == [own, tmp_path / "schema.json"]


@pytest.mark.parametrize("limit", ["0", "unlimited"], ids=["a full disk", "a folder in its place"])
def test_a_schema_that_cannot_be_written_is_no_fault_of_check(project: Path, tmp_path: Path, limit: str) -> None:
    folder = Path(shutil.copytree(project / "jobs", tmp_path / "jobs"))
    if limit == "unlimited":
        (folder / "schema.json").mkdir()
    assert checked(folder, limit) == (limit == "0")
    assert not (folder / "schema.json").is_file()


def references(schema: Any) -> Iterator[str]:
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if key == "$ref":
            yield value.removeprefix("#/definitions/")
        elif isinstance(value, dict | list):
            yield from references(value)


def test_nothing_is_defined_in_vain_and_nothing_is_missing() -> None:
    assert set(references(json_schema.job_schema())) == DEFINITIONS.keys()


PLACES = [
    ("Scheduling", "timeout", {"$ref": "#/definitions/google.protobuf.Duration"}),
    ("WorkerPoolSpec", "replicaCount", {"$ref": "#/definitions/int64"}),
    ("MachineSpec", "acceleratorCount", {"$ref": "#/definitions/int32"}),
    ("Scheduling", "disableRetries", {"type": "boolean"}),
    ("ContainerSpec", "args", {"type": "array", "items": {"type": "string"}}),
    ("HyperparameterTuningJob", "labels", {"type": "object", "additionalProperties": {"type": "string"}}),
    ("StudySpec.StudyStoppingConfig", "shouldStopAsap", {"type": "boolean"}),
    ("StudySpec.MetricSpec", "goal", {"enum": ["MAXIMIZE", "MINIMIZE"]}),
    ("StudySpec.ParameterSpec.DoubleValueSpec", "minValue", {"$ref": "#/definitions/number"}),
]


@pytest.mark.parametrize(("message", "key", "schema"), PLACES, ids=lambda one: one if isinstance(one, str) else "")
def test_each_kind_of_field_has_its_form(message: str, key: str, schema: dict[str, Any]) -> None:
    found = dict(DEFINITIONS[message]["properties"][key])
    found.pop("description")
    assert found == schema


def test_the_fields_are_explained_in_googles_words_without_their_markup() -> None:
    said = {
        f"{message}.{key}": field.get("description", "")
        for message, schema in DEFINITIONS.items()
        for key, field in schema.get("properties", {}).items()
        if not message.startswith("google.")
    }
    assert [place for place, text in said.items() if not text] == []
    assert [place for place, text in said.items() if "``" in text or "`_" in text or "][" in text] == []
    assert said["Scheduling.timeout"] == "Optional. The maximum job running time. The default is 7 days."
    assert said["StudySpec.ParameterSpec.doubleValueSpec"] == "The value spec for a 'DOUBLE' parameter."


def test_of_keys_that_exclude_each_other_the_later_is_refused() -> None:
    exclusions = DEFINITIONS["WorkerPoolSpec"]["dependencies"]
    assert exclusions == {"containerSpec": {"properties": {"pythonPackageSpec": False}}}


@pytest.fixture(scope="module")
def jobs(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder jobs/ of a baked project, after its first check."""
    folder = Path(shutil.copytree(project / "jobs", tmp_path_factory.mktemp("schema") / "jobs"))
    assert checked(folder)
    return folder


def text(jobs: Path, name: str, right: str = "", wrong: str = "") -> str:
    """A job file, with one mistake in it."""
    found = (jobs / f"{name}.yaml").read_text(encoding="utf-8")
    assert right in found
    return found.replace(right, wrong, 1)


def refused(jobs: Path, document: str) -> bool:
    schema = json.loads((jobs / "schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    return any(jsonschema.Draft7Validator(schema).iter_errors(yaml.safe_load(document)))


@pytest.mark.parametrize("name", NAMES)
def test_the_jobs_are_valid(name: str, jobs: Path) -> None:
    assert not refused(jobs, text(jobs, name))


@pytest.mark.parametrize(("name", "right", "wrong", "_"), MISTAKES)
def test_mistakes_are_not(name: str, right: str, wrong: str, _: str, jobs: Path) -> None:
    assert refused(jobs, text(jobs, name, right, wrong))


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    """The command of the language server; BAKED keeps it."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm")
    folder = Path(os.environ.get("BAKED", tmp_path)) / SERVER
    command = folder / "node_modules/.bin/yaml-language-server"
    if not command.exists():
        folder.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), SERVER]
        subprocess.run(install, check=True, timeout=300, stdout=subprocess.DEVNULL)
    return [str(command), "--stdio"]


class Editor:
    """As much of an editor as the language server needs. Source: Language Server Protocol 3.17."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process, self._received = process, b""

    def start(self) -> None:
        self._send("initialize", {"processId": os.getpid(), "rootUri": None, "capabilities": {}}, id=1)
        next(message for message in self._messages() if message.get("id") == 1)
        self._send("initialized", {})
        settings = {"yaml": {"validate": True, "schemaStore": {"enable": False}}}
        self._send("workspace/didChangeConfiguration", {"settings": settings})

    def underlined(self, file: Path) -> list[tuple[int, str]]:
        """Line, counted from 0, and message of everything wrong with the file."""
        content = file.read_text(encoding="utf-8")
        opened = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": content}
        self._send("textDocument/didOpen", {"textDocument": opened})
        for message in self._messages():
            if message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == file.as_uri():
                return [(one["range"]["start"]["line"], one["message"]) for one in message["params"]["diagnostics"]]
        raise AssertionError("the server ended")

    def _send(self, method: str, params: Any, **more: Any) -> None:
        assert self._process.stdin
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _messages(self) -> Iterator[dict[str, Any]]:
        """What the server sends, for so many seconds."""
        deadline = time.monotonic() + SECONDS
        while True:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            length = int(head.rpartition(b"Content-Length: ")[2].split()[0]) if end else 0
            if end and len(rest) >= length:
                self._received = rest[length:]
                yield json.loads(rest[:length])
                continue
            assert self._process.stdout
            ready, _, _ = select.select([self._process.stdout], [], [], deadline - time.monotonic())
            assert ready, f"the server said nothing more within {SECONDS} s"
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            assert more, "the server ended"
            self._received += more


@pytest.fixture
def editor(server: list[str]) -> Iterator[Editor]:
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            editor = Editor(process)
            editor.start()
            yield editor
        finally:
            process.kill()


@pytest.mark.slow
def test_an_editor_underlines_mistakes_and_nothing_else(jobs: Path, editor: Editor) -> None:
    assert [editor.underlined(jobs / f"{name}.yaml") for name in NAMES] == [[] for _ in NAMES]
    for name, right, wrong, words in MISTAKES:
        copy = jobs / f"{name}-{len(list(jobs.iterdir()))}.yaml"
        copy.write_text(text(jobs, name, right, wrong), encoding="utf-8")
        ((line, message),) = editor.underlined(copy)
        assert wrong in copy.read_text(encoding="utf-8").splitlines()[line]
        assert message.startswith(words)

"""What the command line needs, what it calls itself, and how its flags travel."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.tests.running import job, write_program
from launcher.tests.test_run import environment, launch, pool, project, write
from vertex_launch.cli import run
from vertex_launch.cli.main import COMMANDS, main

__all__ = ["project"]  # a fixture

# Runs a command; then says which modules of the REST service it has imported.
IMPORTED = """
import atexit, sys
rest = ("vertex_launch.local.jobs", "vertex_launch.local.registry", "vertex_launch.local.api", "starlette", "uvicorn")
atexit.register(lambda: print("\\nimported", [name for name in sys.modules if name.startswith(rest)]))
from vertex_launch.__main__ import main
main()
"""
# A trainer that says as its parameters how often it was told to be large.
DESCRIBED = """
import json, sys
sizes = ("parameter_bytes gradient_bytes optimizer_bytes flops_per_sample weight_copy_bytes activation_bytes_per_sample"
         " activation_bytes_per_sample_float32 global_batch micro_batches").split()
print(json.dumps(dict.fromkeys(sizes, 1) | {"precision": "bfloat16", "parameters": sys.argv.count("--large")}))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["check", "job.yaml"],
        ["plan", "job.yaml", "--gradient-bytes", "1e6"],
        ["run", "job.yaml"],
        ["submit", "job.yaml"],
        ["emulate", "--help"],
    ],
    ids=lambda words: words[0],
)
def test_no_command_but_the_service_imports_its_resources(project: Path, words: list[str]) -> None:
    write(project, pool("print('hello')"))
    asked = [sys.executable, "-c", IMPORTED, *words]
    said = subprocess.run(
        asked, cwd=project, env=environment(), capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in said.stderr
    assert said.stdout.splitlines()[-1] == "imported []"


def test_an_option_of_another_value_is_told_which_there_are(project: Path) -> None:
    said = launch(project, "jobs", "--state", "foo")
    assert said.returncode == 2
    assert said.stderr.startswith('Invalid value "foo" for --state. Choose from: "queued", "pending", ')


def test_a_command_without_its_file_says_which_argument_is_missing(project: Path) -> None:
    said = launch(project, "run", "--fresh")
    assert (said.returncode, said.stderr) == (2, "run requires the argument JOB. See --help.\n")


# The modules that most commands have of their own; catalog and settings need most of what else takes long.
HEAVY = {"vertex_launch.plan.planner", "vertex_launch.local.run_job", "vertex_launch.job.json_schema", "urllib.request"}


def test_check_does_not_wait_for_what_only_other_commands_import(project: Path) -> None:
    write(project, pool("print('hello')"))
    asked = [sys.executable, "-X", "importtime", "-m", "vertex_launch", "check", "job.yaml"]
    said = subprocess.run(asked, cwd=project, env=environment(), capture_output=True, text=True, timeout=240)
    assert said.stdout.startswith("job.yaml: ok")
    assert HEAVY & {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()} == set()


def test_a_command_that_is_misspelt_is_offered_the_nearest(project: Path) -> None:
    said = launch(project, "chekc", "job.yaml")
    assert said.returncode == 2
    assert 'Did you mean "check"?' in said.stderr


@pytest.mark.parametrize(
    "words", [[name] for name in COMMANDS] + [["emulate", name] for name in ("preempt", "kill", "freeze", "late")]
)
def test_no_help_cuts_a_flag_in_a_terminal_of_80_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["vertex-launch", *words, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"vertex_launch {words[0]}" in said.splitlines()[0]
    assert "…" not in said


def test_messages_call_the_program_as_the_user_started_it(project: Path) -> None:
    script = project / "bin/vertex-launch"
    write_program(script, "from vertex_launch.__main__ import main\nmain()\n")
    by_script = subprocess.run([script, "check"], cwd=project, env=environment(), capture_output=True, text=True)
    assert by_script.stderr == "no job file was given; run vertex-launch check JOB.yaml\n"
    by_module = launch(project, "check")
    assert by_module.stderr == "no job file was given; run python -m vertex_launch check JOB.yaml\n"


def test_an_interrupted_run_of_the_script_is_resumed_by_the_script() -> None:
    words = ["/opt/bin/vertex-launch", "run", "job.yaml", "--fresh", "--", "--fresh"]
    assert run.command(words, {"PATH": "/nowhere"}) == "/opt/bin/vertex-launch run job.yaml -- --fresh"


@pytest.fixture
def described(project: Path) -> Path:
    (project / "trainer.py").write_text(DESCRIBED)
    one = job(command=["python", "-m", "trainer"])
    one["workerPoolSpecs"][0]["machineSpec"] = {
        "machineType": "n1-standard-8",
        "acceleratorType": "NVIDIA_TESLA_T4",
        "acceleratorCount": 1,
    }
    (project / "job.yaml").write_text(yaml.safe_dump(one))
    return project


def test_plan_gives_the_trainer_what_follows_two_dashes(described: Path) -> None:
    for flags, count in ([], 0), (["--", "--large", "--large"], 2):
        planned = launch(described, "plan", "job.yaml", "--json", *flags)
        assert planned.returncode == 0, planned.stderr
        assert json.loads(planned.stdout)["workload"]["parameters"] == count


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            ["--gradient-bytes", "1"],
            "--gradient-bytes can't be combined with trainer flags after --; use only one of them",
        ),
        (
            ["--apply"],
            "--apply can't be combined with flags after --; add them to the args in the job file first",
        ),
        (["--large"], "after a lone --, as in -- --large"),
    ],
)
def test_plan_refuses_flags_that_would_count_for_nothing(described: Path, options: list[str], fault: str) -> None:
    planned = launch(described, "plan", "job.yaml", *options, "--", "--large")
    assert planned.returncode == 1
    assert planned.stderr.splitlines()[-1].endswith(fault)


def test_another_folder_may_hold_the_state_of_a_run(project: Path, tmp_path: Path) -> None:
    run = launch(project, "run", write(project, pool("")), "--state-dir", str(tmp_path / "state"))
    assert run.returncode == 0
    assert (tmp_path / "state/jobs").is_dir()
    assert not (project / ".vertex").exists()


@pytest.mark.parametrize(("variable", "folder"), [("", ".vertex"), ("elsewhere", "elsewhere")])
def test_an_empty_variable_names_no_folder(project: Path, variable: str, folder: str) -> None:
    words = [sys.executable, "-m", "vertex_launch", "emulate", "kill", "job", "workerpool0-0"]
    environ = environment() | {"VERTEX_STATE_DIR": variable}
    said = subprocess.run(words, cwd=project, env=environ, capture_output=True, text=True, timeout=240)
    assert said.stderr.startswith(f"{folder}: the local Vertex isn't running; ")

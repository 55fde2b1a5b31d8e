"""The command line, as a person uses it: in a project folder, with small job files."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from launcher.tests.running import SETTINGS, SOURCE, ends_together, eventually, job, processes
from vertex_launch.cli.trials_table import table
from vertex_launch.errors import FaultError
from vertex_launch.job import spec
from vertex_launch.job.job_resource import same_result
from vertex_launch.job.state_dir import StateDir, output_folder
from vertex_launch.local import run_job

MACHINE = {"machineType": "n1-standard-4"}
GPUS = MACHINE | {"acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 4}
REDUCERS = {
    "machineSpec": MACHINE,
    "replicaCount": 2,
    "containerSpec": {"imageUri": "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"},
}
# Says who it is and with what it was started.
HELLO = """
import json, os, sys
spec = json.loads(os.environ["CLUSTER_SPEC"])
print(json.dumps({"severity": "INFO", "message": f"hello from {spec['task']['type']} {sys.argv[1:]}", "other": 1}))
"""
# What PyTorch and TensorFlow print when a peer is gone, around what matters.
CPP = """
Exception raised from doPost at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1 (most recent call first):
frame #0: c10::Error::Error() + 0x9b (0x7f in libc10.so)
frame #1: <unknown function> + 0x5e (0x7f in libtorch_cpu.so)
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
E0000 00:00:1795791564.011314      23 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE:
/job:worker/replica:0/task:0
The tasks have crashed. Check the task logs for an earlier error, or scheduler events to debug further.
E0000 00:00:1795791564.014481      32 ring_alg.cc:291] Aborting RingReduce with CANCELLED: CANCELLED
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling RecvBuf:
:UNKNOWN:Error received from peer  {grpc_status:1, grpc_message:"CANCELLED"}
E0000 00:00:1795791564.014481      32 cuda_dnn.cc:456] Loaded runtime CuDNN library: 8.0.5
the sentence
"""
# Leaves a file where the service says that checkpoints belong.
SAVE = """
import os, pathlib
folder = pathlib.Path(os.environ["GCS_MOUNT"], os.environ["AIP_CHECKPOINT_DIR"].removeprefix("gs://"))
folder.mkdir(parents=True, exist_ok=True)
print("found", *sorted(path.name for path in folder.iterdir()))
(folder / "state").touch()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder without any job."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "vertex.toml").write_text(SETTINGS)
    return folder


def pool(script: str, count: int = 1, **task: Any) -> dict[str, Any]:
    container = {"imageUri": "image:1", "command": ["python", "-c", script], **task}
    return {"machineSpec": GPUS, "replicaCount": count, "containerSpec": container}


def write(project: Path, *pools: dict[str, Any], output: str = "gs://b/run", name: str = "job.yaml") -> str:
    together = {"restartJobOnWorkerRestart": True} if len(pools) > 1 else {}
    document = {
        "workerPoolSpecs": list(pools),
        "scheduling": {"timeout": "600s"} | together,
        "baseOutputDirectory": {"outputUriPrefix": output},
    }
    (project / name).write_text(yaml.safe_dump(document))
    return name


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vertex_launch", *arguments]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "80"} | more


def launch(project: Path, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    run = subprocess.run(
        command(*arguments), cwd=project, env=environment(**env), capture_output=True, text=True, timeout=240
    )
    assert "Traceback" not in run.stderr + run.stdout
    return run


def lines(text: str, start: str) -> list[str]:
    """All lines with this start, but for those about workers that ended early: how early is the machine's affair."""
    early = " exited with code 0 while other replicas were still running"
    return sorted(line for line in text.splitlines() if line.startswith(start) and not line.endswith(early))


def test_a_run_whose_reader_has_seen_enough_goes_on_and_exits_as_the_job_does(project: Path) -> None:
    says = "import time\nfor number in range(100):\n    print(number, flush=True)\n    time.sleep(0.01)\n"
    for end, code in ("", 0), ("raise SystemExit(3)", 1):
        run = [*command("run", write(project, pool(f"{says}{end}"))), "--fresh"]
        with subprocess.Popen(run, cwd=project, env=environment(), stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout
            running.stdout.readline()
            running.stdout.close()
            assert running.wait(timeout=240) == code


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="is a folder of Linux, where nobody may write")
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(project: Path) -> None:
    run = launch(project, "run", write(project, pool(HELLO)), "--state-dir", "/sys/vertex")
    assert run.returncode == 1
    assert re.fullmatch(
        r"/sys/vertex: (Operation not permitted|Permission denied); use a folder .+", lines(run.stderr, "/")[0]
    )


def test_a_state_folder_that_is_a_file_is_named_with_what_to_do(project: Path) -> None:
    run = launch(project, "run", write(project, pool(HELLO)), "--state-dir", "job.yaml")
    assert run.returncode == 1
    assert run.stderr.splitlines() == ["job.yaml is a file; use --state-dir to specify a folder"]


def test_a_killed_replica_may_have_had_no_memory(project: Path) -> None:
    run = launch(project, "run", write(project, pool("raise SystemExit(137)")))
    killed = "Job failed: workerpool0-0 was killed by SIGKILL (exit code 137). If you didn't kill the process, "
    assert killed in run.stdout


def test_check_says_ok_for_a_job_without_a_fault(project: Path) -> None:
    run = launch(project, "check", write(project, pool(HELLO)))
    assert (run.returncode, run.stdout) == (0, "job.yaml: ok\n")


def test_check_refuses_a_job_and_says_why_where_and_how_to_mend_it(project: Path) -> None:
    run = launch(project, "check", write(project, pool(HELLO, count=2)))
    assert (run.returncode, run.stdout) == (1, "")
    said = r"job\.yaml:\d+: error: workerPoolSpecs\[0\]\.replicaCount: the value must be 1 for the chief, not 2; set"
    assert re.search(said, run.stderr)


def test_check_goes_through_several_files_and_fails_if_one_is_refused(project: Path) -> None:
    good, bad = write(project, pool(HELLO)), write(project, pool(HELLO, count=2), name="bad.yaml")
    run = launch(project, "check", good, bad, "missing.yaml")
    assert (run.returncode, run.stdout) == (1, "job.yaml: ok\n")
    assert re.search(r"bad\.yaml:\d+: error: ", run.stderr)
    assert "missing.yaml: error: the file doesn't exist" in run.stderr


@pytest.mark.parametrize("arguments", [("check", "job.yaml"), ("run", "job.yaml")])
def test_a_broken_vertex_toml_is_one_sentence(project: Path, arguments: tuple[str, ...]) -> None:
    write(project, pool(HELLO))
    (project / "vertex.toml").write_text("project: demo\n")
    run = launch(project, *arguments)
    assert run.returncode == 1
    assert run.stderr.startswith("vertex.toml: the file is not valid TOML: ")
    assert run.stderr.count("\n") == 1


def test_brackets_in_a_file_are_shown_as_they_are(project: Path) -> None:
    keys = ["[/red]", "[bold]", "[link=x]y[/link]"]
    (project / "job.yaml").write_text("".join(f'"{key}": 1\n' for key in keys))
    said = launch(project, "check", "job.yaml").stderr
    assert [key for key in keys if f'unknown key "{key}"' not in said] == []


def test_run_shows_each_line_behind_the_name_of_its_replica_and_json_as_its_message(project: Path) -> None:
    says = HELLO + ends_together(3)
    write(project, pool(says), pool(says, count=2))
    run = launch(project, "run", "job.yaml")
    assert (run.returncode, run.stderr) == (0, "")
    assert lines(run.stdout, "[") == [
        "[workerpool0-0] hello from workerpool0 []",
        "[workerpool1-0] hello from workerpool1 []",
        "[workerpool1-1] hello from workerpool1 []",
    ]
    assert "job: 3 replicas on this machine" in run.stdout
    assert re.search(r"^Job succeeded in \d+ s$", run.stdout, re.MULTILINE)
    assert lines(run.stdout, "output: ") == []  # nobody wrote there
    _, _, conclusion = run.stdout.partition("Job succeeded")
    notes = [line for line in conclusion.splitlines() if "was still running when the chief exited with code 0" in line]
    assert [note.split()[0] for note in notes] == ["workerpool1-0", "workerpool1-1"]
    (journal,) = project.glob(".vertex/jobs/*/log.jsonl")
    assert [json.loads(line)["line"] for line in journal.read_text().splitlines()][-2:] == notes


def test_what_c_prints_of_a_lost_peer_is_in_the_log_and_not_on_the_terminal(project: Path) -> None:
    run = launch(project, "run", write(project, pool(f"print({CPP!r}.strip())")))
    shown = [line.removeprefix("[workerpool0-0] ") for line in run.stdout.splitlines() if line.startswith("[")]
    assert shown == ["(C++ stack trace omitted; see workerpool0-0.log)", *CPP.splitlines()[-2:]]
    (log,) = project.glob(".vertex/jobs/*/workerpool0-0.log")
    assert CPP.strip() in log.read_text()


def test_reducers_are_named_as_not_started_and_still_listed_in_the_cluster(project: Path) -> None:
    count = "import json, os; print(len(json.loads(os.environ['CLUSTER_SPEC'])['cluster']['workerpool2']), 'reducers')"
    run = launch(project, "run", write(project, pool(count), pool("", count=2), REDUCERS))
    assert run.returncode == 0
    assert "Not started: workerpool2-0 to workerpool2-1 (reducers)" in run.stdout
    assert lines(run.stdout, "[workerpool") == ["[workerpool0-0] 2 reducers"]


def test_max_replicas_limits_those_that_train(project: Path) -> None:
    says = HELLO + ends_together(2)
    run = launch(project, "run", write(project, pool(says), pool(says, count=3)), "--max-replicas", "2")
    assert run.returncode == 0
    assert "job: 2 of 4 replicas on this machine" in run.stdout
    assert len(lines(run.stdout, "[workerpool")) == 2


def test_what_follows_two_dashes_goes_to_every_trainer(project: Path) -> None:
    says = HELLO + ends_together(2)
    job = write(project, pool(says, args=["--a"]), pool(says))
    run = launch(project, "run", job, "--", "--steps", "5", "two words")
    assert lines(run.stdout, "[workerpool") == [
        "[workerpool0-0] hello from workerpool0 ['--a', '--steps', '5', 'two words']",
        "[workerpool1-0] hello from workerpool1 ['--steps', '5', 'two words']",
    ]


@pytest.mark.parametrize(
    ("option", "guess"),
    [
        ("--steps", ""),
        ("--max-replica", "did you mean --max-replicas?"),
    ],
)
def test_an_unknown_option_is_the_trainers_or_a_misspelt_one(project: Path, option: str, guess: str) -> None:
    run = launch(project, "run", write(project, pool(HELLO)), option, "5")
    whose = "If it's a trainer flag, put it" if guess else "put trainer flags"
    cure = f"{guess} {whose} after a lone --, as in -- {option}".strip()
    assert (run.returncode, run.stderr) == (1, f"run has no option {option}; {cure}\n")


def test_a_run_finds_what_the_one_before_saved(project: Path) -> None:
    job = write(project, pool(SAVE))
    first, second = (launch(project, "run", job).stdout for _ in range(2))
    assert lines(first + second, "[") == ["[workerpool0-0] found", "[workerpool0-0] found state"]
    continues = "Continuing the earlier run in .vertex/gcs/b/run. To start over, use --fresh.\n"
    assert (continues in first, continues in second) == (False, True)


def neighbors(project: Path) -> list[Path]:
    """Files all around the output folder gs://b/run, none of them in it."""
    buckets = project / ".vertex/gcs"
    paths = [buckets / "b/data", buckets / "b/running/x", buckets / "c/run/x", project / ".vertex/x", project / "run"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_fresh_empties_the_output_folder_and_nothing_else(project: Path) -> None:
    left = neighbors(project)
    (project / ".vertex/gcs/b/run/old").mkdir(parents=True)
    assert launch(project, "run", write(project, pool("")), "--fresh").returncode == 0
    assert not (project / ".vertex/gcs/b/run").exists()
    assert all(path.exists() for path in left)


def custom_job(path: Path) -> spec.Job:
    job = spec.load(path)
    assert isinstance(job, spec.Job)
    return job


@pytest.mark.parametrize("output", ["gs://b", "gs://b/"])
def test_fresh_never_empties_a_whole_bucket_which_may_be_the_output_folder_all_the_same(
    project: Path, output: str
) -> None:
    left = neighbors(project)
    job, state_dir = custom_job(project / write(project, pool(HELLO), output=output)), StateDir(project / ".vertex")
    with pytest.raises(FaultError, match="outputUriPrefix: the value is an entire bucket, which --fresh never empties"):
        run_job.empty_output(job, state_dir)
    assert all(path.exists() for path in left)
    assert output_folder(job, state_dir) == project / ".vertex/gcs/b"


@pytest.mark.parametrize("folder", ["b/../../x", "b/run/../..", "..", "", "/", "//b/run", "b/./run", "b//run", "/tmp"])
def test_an_output_folder_that_leaves_its_bucket_is_refused(project: Path, folder: str) -> None:
    left = neighbors(project)
    job, state_dir = (
        custom_job(project / write(project, pool(SAVE), output=f"gs://{folder}")),
        StateDir(project / ".vertex"),
    )
    for use in (output_folder, run_job.empty_output):
        with pytest.raises(
            FaultError, match=rf'Prefix: "gs://{folder}" (isn.t|doesn.t begin with|contains) .*; (write|use)'
        ):
            use(job, state_dir)
    assert all(path.exists() for path in left)


def test_an_absolute_path_behind_gs_is_not_written_to(project: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    run = launch(project, "run", write(project, pool(SAVE), output=f"gs://{tmp_path}"))
    assert (run.returncode, run.stdout) == (1, "")
    assert "isn't a folder in a bucket; set it to gs://b/job" in run.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "project"]


def test_a_failure_is_shown_with_its_last_lines_first_cause_first(project: Path) -> None:
    fail = "print('step 1'); print('out of memory'); exit(9)"
    run = launch(project, "run", write(project, pool("import time; time.sleep(60)"), pool(fail)))
    assert run.returncode == 1
    _, _, conclusion = run.stdout.partition("Job failed: ")
    assert conclusion.splitlines()[:3] == ["workerpool1-0 exited with code 9", "    step 1", "    out of memory"]
    assert "Job succeeded" not in run.stdout


def test_a_run_that_hangs_ends_at_the_timeout_of_its_job(project: Path) -> None:
    document = {"workerPoolSpecs": [pool("import time; time.sleep(600)")], "scheduling": {"timeout": "2s"}}
    (project / "job.yaml").write_text(yaml.safe_dump(document))
    run = launch(project, "run", "job.yaml")
    assert run.returncode == 1
    assert "Job failed: the job ran longer than its timeout of 2 s" in run.stdout
    (journal,) = project.glob(".vertex/projects/*/locations/*/customJobs/*.json")
    assert '"JOB_STATE_FAILED"' in journal.read_text()


def test_a_job_without_an_output_folder_runs_and_has_a_log_of_all_that_was_printed(project: Path) -> None:
    (project / "job.yaml").write_text(yaml.safe_dump({"workerPoolSpecs": [pool(HELLO)]}))
    run = launch(project, "run", "job.yaml", "--fresh")
    assert run.returncode == 0
    assert "output: " not in run.stdout
    (line,) = lines(run.stdout, "logs: ")
    *_, journal, log = sorted((project / line.split()[1]).iterdir())
    assert (journal.name, log.name) == ("log.jsonl", "workerpool0-0.log")
    assert json.loads(log.read_text())["other"] == 1


PACKAGE = {
    "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest",
    "packageUris": ["gs://b/p.tar.gz"],
    "pythonModule": "trainer.task",
}


@pytest.mark.parametrize(("code", "flags"), [(3, []), (1, ["--retry-user-errors"])])
def test_with_restarts_a_replica_starts_again_as_in_the_service(project: Path, code: int, flags: list[str]) -> None:
    folder = "import os, tempfile; folder = os.environ['GCS_MOUNT'] + '/starts'; os.makedirs(folder, exist_ok=True)"
    write(project, pool(f"{folder}; tempfile.mkdtemp(dir=folder); exit({code} * (len(os.listdir(folder)) < 3))"))
    run = launch(project, "run", "job.yaml", "--restarts", *flags)
    assert run.returncode == 0
    said = f"[workerpool0-0] workerpool0-0 exited with code {code}. Restarting this replica (restart "
    assert len(lines(run.stdout, said)) == 2


def test_without_restarts_there_is_nothing_to_retry(project: Path) -> None:
    run = launch(project, "run", write(project, pool("")), "--retry-user-errors")
    said = "--retry-user-errors has no effect without --restarts; add --restarts\n"
    assert (run.returncode, run.stderr) == (1, said)


def test_a_long_traceback_is_shown_whole_and_a_line_on_stderr_like_any_other(project: Path) -> None:
    warning = "import sys; print('only a warning', file=sys.stderr)"
    deep = "def f(n): return g(n)\ndef g(n): return f(n - 1) if n else 1 / 0\nf(20)"
    write(project, pool(f"{warning}\n{deep}"))
    run = subprocess.run(
        command("run", "job.yaml"), cwd=project, env=environment(), capture_output=True, text=True, timeout=240
    )
    shown = run.stdout.partition("Job failed: workerpool0-0 exited with code 1\n")[2].splitlines()
    end = next(number for number, line in enumerate(shown) if "ZeroDivisionError" in line)
    assert shown[0] == "    Traceback (most recent call last):"
    assert end > 40
    assert lines(run.stdout, "[workerpool0-0] only") == ["[workerpool0-0] only a warning"]


# Every case is in test_contract.py and test_packages.py.
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"pythonPackageSpec": PACKAGE}, "workerPoolSpecs[0].pythonPackageSpec.packageUris[0]: "),
        (
            {"containerSpec": {"imageUri": "image", "args": ["x"]}},
            "workerPoolSpecs[0].containerSpec: the job doesn't set a command",
        ),
    ],
    ids=["package", "arguments"],
)
def test_a_job_of_which_a_part_is_missing_here_is_refused_in_one_sentence(
    project: Path, task: dict[str, Any], words: str
) -> None:
    write(project, {"machineSpec": MACHINE, "replicaCount": 1, **task})
    (project / ".vertex/gcs/b/run").mkdir(parents=True)
    run = launch(project, "run", "job.yaml", "--fresh", "--", "--steps", "5")
    assert run.returncode == 1
    refusals = [line for line in run.stderr.splitlines() if "warning" not in line]
    assert [line.startswith(f"job.yaml: {words}") for line in refusals] == [True]
    assert (project / ".vertex/gcs/b/run").exists()  # a refused job forgets nothing


@pytest.mark.parametrize(
    ("number", "save", "said_then"),
    [
        (signal.SIGINT, SAVE, "resume with"),
        (signal.SIGTERM, "", "no checkpoint exists yet; start the job again with"),
    ],
)
def test_an_interrupted_run_says_how_it_resumes_and_exits_with_130(
    project: Path, number: signal.Signals, save: str, said_then: str
) -> None:
    mark = str(project)
    forever = f"{save}\nimport time; print('started', flush=True); time.sleep(1000)"
    write(project, pool(forever, env=[{"name": "MARK", "value": mark}]), name="my job.yaml")
    words = ("run", "my job.yaml", "--fresh", "--max-replicas", "1", "--", "--steps", "5", "--fresh")
    launcher = subprocess.Popen(
        command(*words), cwd=project, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    logs = project / ".vertex/jobs"
    assert eventually(lambda: any("started" in path.read_text() for path in logs.glob("*/workerpool0-0.log")), 120)
    launcher.send_signal(number)
    _, said = launcher.communicate(timeout=120)
    stopped, advice = said.decode().splitlines()
    assert (launcher.returncode, stopped) == (130, "interrupted; every replica was stopped")
    begin, _, same = advice.partition(": ")
    python, *rest = shlex.split(same)
    assert begin == said_then
    assert shutil.which(python) == sys.executable  # so that it can be pasted
    assert rest == ["-m", "vertex_launch", "run", "my job.yaml", "--max-replicas", "1", "--", "--steps", "5", "--fresh"]
    assert eventually(lambda: processes(f"MARK={mark}") == [])


def test_a_reader_that_leaves_does_not_leave_the_job_hanging(project: Path) -> None:
    many = "for i in range(10_000): print('a line of some length', i)"
    write(project, pool(many))
    with subprocess.Popen(
        command("run", "job.yaml"), cwd=project, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.stdout.close()
        launcher.wait(timeout=240)
    (log,) = (project / ".vertex/jobs").glob("*/workerpool0-0.log")
    assert len(log.read_text().splitlines()) == 10_000


# Reports the rate as its accuracy, as cloudml-hypertune would.
REPORT = """
import json, os, sys
rate = float(sys.argv[-1].rpartition("=")[2])
entry = {"timestamp": 1.0, "trial": os.environ["CLOUD_ML_TRIAL_ID"], "accuracy": str(rate), "global_step": "1"}
with open(sys.argv[1], "w") as file:
    file.write(json.dumps(entry) + chr(10))
"""


def test_a_search_runs_its_trials_and_shows_what_they_found(project: Path) -> None:
    write(project, pool(REPORT, args=["$(CLOUD_ML_HP_METRIC_FILE)"]))
    rate = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}
    document = {
        "maxTrialCount": 2,
        "parallelTrialCount": 1,
        "studySpec": {"metrics": [{"metricId": "accuracy"}], "parameters": [rate]},
        "trialJobSpec": yaml.safe_load((project / "job.yaml").read_text()),
    }
    (project / "tuning.yaml").write_text(yaml.safe_dump(document))
    assert launch(project, "check", "tuning.yaml").stdout == "tuning.yaml: ok\n"
    run = launch(project, "run", "tuning.yaml")
    assert (run.returncode, run.stderr) == (0, "")
    head, *rows = [line.split() for line in run.stdout.splitlines()[-3:]]
    assert head == ["trial", "rate", "accuracy"]
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(row[1] == row[2] for row in rows)
    best = max(rows, key=lambda row: float(row[2]))
    assert all(row[3:] == (["succeeded,", "the", "best"] if row is best else ["succeeded"]) for row in rows)
    document["trialJobSpec"]["workerPoolSpecs"] *= 2
    (project / "tuning.yaml").write_text(yaml.safe_dump(document))
    again = launch(project, "run", "tuning.yaml", "--fresh", "--max-replicas", "1", "--", "--rate=0.5")
    told = "after --: the tuning job sets --rate, so each trial replaces your value with its own"
    assert told in again.stderr
    assert again.returncode == 0


def trial(id: str, state: str, loss: float | None = None, reason: str = "") -> dict[str, Any]:
    measured = {"finalMeasurement": {"metrics": [{"metricId": "loss", "value": loss}]}} if loss else {}
    return {"id": id, "state": state, "infeasibleReason": reason, **measured}


def test_the_table_of_a_search_says_how_each_trial_ended_and_marks_the_best() -> None:
    study = {"parameters": [], "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}], "medianAutomatedStoppingSpec": {}}
    trials = [
        trial("1", "SUCCEEDED", 0.5),
        trial("2", "SUCCEEDED", 0.9),
        trial("3", "INFEASIBLE", reason="exited with code 1"),
    ]
    runs = [{"name": f"p/customJobs/{one['id']}", "state": "JOB_STATE_SUCCEEDED"} for one in trials]
    trials = [one | {"customJob": run["name"]} for one, run in zip(trials, runs, strict=True)]
    runs[1]["state"] = "JOB_STATE_CANCELLED"
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table({"studySpec": study, "trials": trials}, runs))
    assert [" ".join(line.split()) for line in console.export_text().splitlines()[1:]] == [
        "1 0.5 succeeded, the best",
        "2 0.9 stopped early: worse than the median of the other trials",
        "3 failed: exited with code 1",
    ]


@pytest.mark.parametrize(
    ("losses", "depths", "alike"),
    [
        ((0.5, 0.5), (1, 2), True),
        ((0.5, 0.5, None), (1, 2, 3), True),  # what measured nothing does not count
        ((0.5, 0.5000001), (1, 2), False),
        ((0.5, 0.5), (1, 1), False),  # no flag differs
        ((0.5, None), (1, 2), False),
        ((), (), False),
    ],
)
def test_only_trials_of_different_parameters_are_told_to_measure_the_same(
    losses: tuple[float | None, ...], depths: tuple[int, ...], alike: bool
) -> None:
    trials = [
        trial(str(number), "SUCCEEDED", loss) | {"parameters": [{"parameterId": "depth", "value": depth}]}
        for number, (loss, depth) in enumerate(zip(losses, depths, strict=True))
    ]
    assert ("all 2 trials reported exactly the same loss, 0.5" in same_result({"trials": trials})) == alike


def test_a_flag_that_the_trainer_lacks_deletes_and_starts_nothing(project: Path) -> None:
    (project / "trainer").mkdir()
    (project / "trainer/config.py").write_text("class Config:\n    steps: int = 5\n")
    (project / "trainer/task.py").write_text('print("it has started")\n')
    one = job(imageUri="image:1", command=["python", "-m", "trainer.task"])
    (project / "job.yaml").write_text(yaml.safe_dump(one))
    earlier = project / ".vertex/gcs/b/run/model"
    earlier.mkdir(parents=True)
    run = launch(project, "run", "job.yaml", "--fresh", "--", "--stpes", "30")
    assert (run.returncode, run.stdout) == (1, "")
    refusal = "after --: trainer/config.py doesn't define the flag --stpes; did you mean --steps?"
    assert run.stderr.splitlines()[-1] == refusal
    assert earlier.exists()
    planned = launch(project, "plan", "job.yaml", "--", "--stpes", "30")
    assert (planned.returncode, planned.stdout, planned.stderr.splitlines()[-1]) == (1, "", refusal)

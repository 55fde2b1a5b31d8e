"""The metrics of a trial: which lines of its file count, and what is said of the others."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.tests.running import deadline, eventually
from launcher.tests.vertex import Service, custom_job, script, service
from vertex_launch.local.jobs.metric_file import CHUNK, CURE, MetricFile
from vertex_launch.local.jobs.search import Measurement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


def line(step: object, when: object = 1.5, **metrics: object) -> str:
    return json.dumps({"checkpoint_path": "", "global_step": step, "timestamp": when, "trial": "3"} | metrics) + "\n"


def read(path: Path, text: str, *ids: str) -> list[Measurement]:
    """The measurements of an ended trial that has written this."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return MetricFile(path, ids or ["loss"]).read(ended=True)


def test_lines_of_one_step_are_one_measurement(path: Path) -> None:
    text = line(10, loss="0.5") + line(10, accuracy="0.75") + line(20, loss="0.25") + line("20", loss="0.125")
    assert read(path, text, "loss", "accuracy") == [
        Measurement(10, 1.5, {"loss": 0.5, "accuracy": 0.75}),
        Measurement(20, 1.5, {"loss": 0.25}),
        Measurement(20, 1.5, {"loss": 0.125}),
    ]
    assert [one.metrics for one in read(path, text, "accuracy")] == [{"accuracy": 0.75}]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (line(20, loss="0.1")[:-9], "isn't a JSON object"),
        ("hello\n", "isn't a JSON object"),
        ('{"global_step": 1, "loss": nan, "timestamp": 1}\n', "isn't a JSON object"),
        ("[1]\n", "isn't a JSON object"),
        ("null\n", "isn't a JSON object"),
        ("[" * 100_000 + "\n", "isn't a JSON object"),
        ("9" * 10_000 + "\n", "isn't a JSON object"),
        ("\x00\ufffd\ud800\n", "isn't a JSON object"),
        (line(20, loss="0.5 (best)"), 'has no number as loss, but "0.5 (best)"'),
        (line(20, loss=None), "has no number as loss, but null"),
        (line(20, loss=[0.5, 0.1]), "has no number as loss, but [0.5, 0.1]"),
        (line(2**70, loss=1), "has no 64-bit integer as global_step"),
        (line("1.5", loss=1), "has no 64-bit integer as global_step"),
        (line(float("inf"), loss=1), "has no 64-bit integer as global_step"),
        (line(20, None, loss=1), "has no number as timestamp, but null"),
        (line(20, "nan", loss=1), "has no number as timestamp"),
        ('{"loss": "1", "global_step": "1"}\n', "has no number as timestamp"),
    ],
    ids=range(17),
)
def test_a_line_that_is_cut_off_or_no_report_is_left_out_and_named(path: Path, broken: str, reason: str) -> None:
    assert read(path, broken) == []
    path.write_text(line(10, loss="0.5") + broken, encoding="utf-8", errors="surrogatepass")
    file = MetricFile(path, ["loss"])
    assert file.read(ended=True) == [Measurement(10, 1.5, {"loss": 0.5})]
    assert file.fault == f"line 2 of the trial's metric file {reason}; {CURE}"


def test_blank_lines_and_other_metrics_are_no_fault(path: Path) -> None:
    path.write_text("\n" + line(20, other="1") + "\r\n")
    file = MetricFile(path, ["loss"])
    assert (file.read(ended=True), file.fault) == ([], "")


NOT_NAMED = "the chief didn't write to CLOUD_ML_HP_METRIC_FILE, and files in /tmp/hypertune are ignored"


@pytest.mark.parametrize(
    ("text", "ids", "why"),
    [
        (
            line(1, val_loss=1),
            "loss",
            "no metric loss was reported, but val_loss was. Set metricId to val_loss, or report loss.",
        ),
        (line(1, Loss=1), "loss", "no metric loss was reported, but Loss was. Set metricId to Loss, or report loss."),
        (line(1, epoch=1, val_rmse=2), "rmse", " epoch and val_rmse were. Set metricId to val_rmse, or report rmse."),
        (line(1, epoch=1, speed=2), "loss", "no metric loss was reported, but epoch and speed were. Report loss."),
        ("".join(line(1, **{name: 1}) for name in "abcde"), "loss", ", but a, b and c were. Report loss."),
        (line(1, loss=1), "loss auc", "no metric auc was reported, but loss was. Report auc."),
        (
            line(1, loss=1) + line(2, auc=1),
            "loss auc",
            "loss or auc was reported at the same step. Report all metrics at each step.",
        ),
        (
            line(1, loss=[1]),
            "loss",
            f"no metric loss was reported: line 1 of the trial's metric file has no number as loss, but [1]; {CURE}",
        ),
        (
            "hello\n",
            "loss",
            f"no metric loss was reported: line 1 of the trial's metric file isn't a JSON object; {CURE}",
        ),
        ("hello\n" + line(1, val_loss=1), "loss", ", but val_loss was. Set metricId to val_loss, or report loss."),
        (None, "loss", f"no metric loss was reported: {NOT_NAMED}. Use cloudml-hypertune, or {CURE} to this file"),
        ("", "loss", f"no metric loss was reported: {NOT_NAMED}. Use cloudml-hypertune, or {CURE} to this file"),
    ],
)
def test_why_a_trial_has_no_metric_is_said_with_what_it_did_report(
    path: Path, text: str | None, ids: str, why: str
) -> None:
    if text is not None:
        path.write_text(text)
    file = MetricFile(path, ids.split())
    file.read(ended=True)
    assert file.why_none().endswith(why)


def test_of_several_replicas_the_one_that_reported_in_the_place_of_the_chief_is_named(tmp_path: Path) -> None:
    (tmp_path / "workerpool1-0.metrics").write_text(line(1, loss=1))
    (tmp_path / "workerpool1-1.metrics").write_text(line(1, other=1))
    file = MetricFile(tmp_path / "workerpool0-0.metrics", ["loss"])
    assert file.read(ended=True) == []
    said = "no metric loss was reported by the chief, only by workerpool1-0. Report the metric from workerpool0-0."
    assert file.why_none() == said


def test_each_line_is_read_once_and_the_last_when_it_is_whole_or_the_trial_has_ended(path: Path) -> None:
    file = MetricFile(path, ["loss"])
    assert file.read() == []
    with path.open("w") as written:
        for step in (1, 2, 3):
            print(line(step, loss=step), end="", file=written)
        written.write(line(4, loss=4)[:-1])
        written.flush()
        assert [one.step for one in file.read()] == [1, 2, 3]
        assert [one.step for one in file.read(ended=True)] == [1, 2, 3, 4]
    assert [one.step for one in file.read(ended=True)] == [1, 2, 3, 4]


def test_a_file_that_is_written_anew_is_read_anew(path: Path) -> None:
    file = MetricFile(path, ["loss"])
    path.write_text("no report\n" + line(1, loss=1))
    assert [one.step for one in file.read()] == [1]
    path.write_text("".join(line(step, when=step, loss=1) for step in range(5, 9)))
    assert ([one.step for one in file.read()], file.fault) == ([1, 5, 6, 7, 8], "")


def test_what_has_left_the_file_still_counts(path: Path) -> None:
    file, lines = MetricFile(path, ["loss", "accuracy"]), list[str]()
    for step in range(1, 31):
        lines += [line(step, when=step, loss=step), line(step, when=step, accuracy=1 / step)]
        path.write_text("")
        file.read()
        path.write_text("".join(lines[-5:]))
        file.read()
    reported = file.read(ended=True)
    assert [(one.step, one.metrics) for one in reported] == [
        (step, {"loss": step, "accuracy": pytest.approx(1 / step)}) for step in range(1, 31)
    ]


def test_of_a_running_trial_many_lines_are_read_in_parts_and_of_an_ended_one_at_once(path: Path) -> None:
    one = line(1, loss=1)
    lines = CHUNK // len(one) + 10
    path.write_text(one * lines + line(2, loss=3))
    running, ended = MetricFile(path, ["loss"]), MetricFile(path, ["loss"])
    assert len(running.read()) < lines
    assert len(running.read()) == len(ended.read(ended=True)) == lines + 1


def test_a_line_longer_than_any_report_is_passed_over(path: Path) -> None:
    assert [one.step for one in read(path, "x" * (2 * CHUNK) + "\n" + line(2, loss=3))] == [2]


def test_what_the_library_writes_is_read(path: Path) -> None:
    report = "report_hyperparameter_tuning_metric"
    code = f"import hypertune; h = hypertune.HyperTune(); [h.{report}('loss', 1 / n, n) for n in range(1, 200)]"
    environment = os.environ | {"CLOUD_ML_HP_METRIC_FILE": str(path), "CLOUD_ML_TRIAL_ID": "7"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=240)
    reported = MetricFile(path, ["loss"]).read(ended=True)
    assert [one.step for one in reported] == [*range(100, 200)]
    assert reported[0].metrics == {"loss": 0.01}


NOT_A_FILE = "the trial's metric file can't be read (it isn't a regular file); write lines such as"
ACTS = {
    "os.mkfifo(path)": f"no metric loss was reported: {NOT_A_FILE}",
    "os.symlink('/dev/zero', path)": f"no metric loss was reported: {NOT_A_FILE}",
    "os.mkdir(path)": f"no metric loss was reported: {NOT_A_FILE}",
    """open(path, "w").write('{"global_step": 1180591620717411303424, "timestamp": 1, "loss": 1}')""": (
        "no metric loss was reported: line 1 of the trial's metric file has no 64-bit integer as global_step"
    ),
    """open(path, "w").write('{"global_step": 1, "timestamp": 1, "loss": nan}')""": (
        "no metric loss was reported: line 1 of the trial's metric file isn't a JSON object"
    ),
    """open(path, "w").write('{"global_step": 1, "timestamp": 1, "loss": Infinity}')""": (
        "the trial reported inf at step 1 for loss"
    ),
    """open(path, "w").write('{"global_step": 1, "timestamp": 1, "val_loss": 1}')""": (
        "no metric loss was reported, but val_loss was. Set metricId to val_loss, or report loss."
    ),
    "open('output.metrics', 'w').write('{}')": f"no metric loss was reported: {NOT_NAMED}",
}


def tuning(act: str) -> dict[str, object]:
    code = f"import os; path = os.environ['CLOUD_ML_HP_METRIC_FILE']; {act}"
    spec = custom_job(*script(code))["jobSpec"]
    parameter = {"parameterId": "x", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}
    study = {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}], "parameters": [parameter]}
    return {
        "displayName": "odd",
        "studySpec": study,
        "maxTrialCount": 1,
        "parallelTrialCount": 1,
        "trialJobSpec": spec,
    }


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("metrics")) as running:
        yield running


def test_a_trial_without_its_metric_ends_with_the_reason_wherever_it_is_shown(vertex: Service) -> None:
    with deadline():
        told, stream = list[str](), vertex.folder / "service.log"
        names = [(vertex.create(tuning(act), "hyperparameterTuningJobs"), reason) for act, reason in ACTS.items()]
        for name, reason in names:
            search = vertex.wait(name)
            (trial,) = search["trials"]
            (shown,) = (job for job in vertex.call("GET", "/page/jobs")[1]["jobs"] if name.endswith(job["id"]))
            assert shown["trials"][0]["reason"] == trial["infeasibleReason"]
            assert search["error"]["message"] == f"1 of 1 trials failed. First error: {trial['infeasibleReason']}"
            told.append(f"has no result: {trial['infeasibleReason']}")
            assert trial["state"] == "INFEASIBLE"
            assert trial["infeasibleReason"].startswith(reason)
            assert "finalMeasurement" not in trial
        assert eventually(lambda: all(words in stream.read_text() for words in told))

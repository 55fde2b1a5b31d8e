import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from launcher.tests.casebook import CPU, GOOD, P0, SETTINGS, alone, edited, write
from launcher.tests.running import SOURCE, while_fresh
from vertex_launch.facts import catalog
from vertex_launch.rules import RULES
from vertex_launch.rules.check import facts_notice

TOML = f"""\
project = "{SETTINGS.project}"
region = "{SETTINGS.region}"
bucket = "{SETTINGS.bucket}"
image = "{SETTINGS.image}"
"""
WARNED = edited(alone(CPU) | {"scheduling.timeout": "0s"})
REFUSED = edited({f"{P0}.replicaCount": 3})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vertex.toml").write_text(TOML)
    return tmp_path


def check(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """What a user sees who is in that folder while the facts are fresh."""
    command = [sys.executable, "-m", "vertex_launch", "check", *arguments]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True)
    done.stderr = while_fresh(done.stderr)
    return done


def test_a_finding_is_printed_with_the_line_that_an_editor_opens(folder: Path) -> None:
    write(folder, REFUSED)
    done = check(folder, "run.yaml")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "run.yaml:6: error: workerPoolSpecs[0].replicaCount: the value must be 1 for the chief, not 3;"
        " set it to 1 and put all other replicas in pool 1 (chief-count)\n"
    )


def test_what_is_no_job_is_a_finding_with_a_line_too(folder: Path) -> None:
    (folder / "form.yaml").write_text("workerPoolSpecs:\n- replicaCount: 1\n  machinSpec: {}\n")
    (folder / "text.yaml").write_text("workerPoolSpecs:\n- a: [\n")
    done = check(folder, "form.yaml", "text.yaml", "none.yaml")
    first, second, third, last = done.stderr.splitlines()
    assert first == (
        'form.yaml:3: error: workerPoolSpecs[0]: unknown key "machinSpec"; did you mean machineSpec? (form)'
    )
    assert second.startswith("text.yaml:3: error: ")
    assert third == "none.yaml: error: the file doesn't exist; check the filename and the current folder (form)"
    assert last == "the rules weren't applied to form.yaml, text.yaml, none.yaml; fix the file format first"


def test_warnings_fail_only_where_they_are_asked_to(folder: Path) -> None:
    write(folder, WARNED)
    done = check(folder, "run.yaml")
    assert (done.returncode, done.stdout) == (0, "run.yaml: ok, with 1 warning\n")
    strict = check(folder, "run.yaml", "--strict")
    assert (strict.returncode, strict.stdout) == (1, "")
    assert "(timeout-zero)" in strict.stderr


def test_jobs_that_share_their_output_are_found_together(folder: Path) -> None:
    write(folder, GOOD).rename(folder / "first.yaml")
    write(folder, GOOD)
    assert check(folder, "run.yaml", "run.yaml").stderr == ""
    done = check(folder, "first.yaml", "run.yaml")
    assert done.stdout == "first.yaml: ok\nrun.yaml: ok, with 1 warning\n"
    assert "outputUriPrefix: first.yaml has the same output folder, so the jobs share their checkpoints" in done.stderr


def test_json_is_one_document_and_nothing_else(folder: Path) -> None:
    write(folder, WARNED)
    (folder / "text.yaml").write_text("a: [\n")
    done = check(folder, "--json", "run.yaml", "text.yaml", "none.yaml")
    assert (done.returncode, done.stderr) == (1, "")
    warned, broken, absent = json.loads(done.stdout)
    assert warned == {
        "file": "run.yaml",
        "line": warned["line"],
        "place": "scheduling.timeout",
        "code": "timeout-zero",
        "severity": "warning",
        "certainty": "inferred",
        "fault": "with a timeout of zero, the job can't run",
        "cure": "set it to the longest time that you would pay for, such as 3600s",
        "consequence": RULES["timeout-zero"].consequence,
        "source": catalog.standard().sources["api-types"],
    }
    assert warned["line"] > 1
    assert (broken["file"], broken["line"], broken["code"]) == ("text.yaml", 2, "form")
    assert (absent["file"], absent["line"], absent["code"]) == ("none.yaml", None, "form")


def test_json_of_good_files_is_an_empty_list(folder: Path) -> None:
    write(folder, GOOD)
    done = check(folder, "run.yaml", "--json")
    assert (done.returncode, done.stdout.split()) == (0, ["[]"])


def test_a_rule_is_explained_without_a_job_or_settings(tmp_path: Path) -> None:
    done = check(tmp_path, "--explain", "reducer-count")
    assert done.returncode == 0
    rule = RULES["reducer-count"]
    assert all(part in done.stdout for part in (rule.code, rule.text, rule.severity, rule.certainty, rule.consequence))
    assert catalog.standard().sources["distributed-training"] in done.stdout


def test_a_rule_that_is_misspelt_is_offered_the_nearest(tmp_path: Path) -> None:
    done = check(tmp_path, "--explain", "reducer-cuont")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == 'there is no rule "reducer-cuont"; did you mean reducer-count?\n'


def test_a_code_that_is_like_none_is_told_where_all_are(tmp_path: Path) -> None:
    done = check(tmp_path, "--explain", "zzz")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == 'there is no rule "zzz"; to list all rules, run check --explain without a code\n'


def test_all_rules_are_listed_where_no_code_is_given(tmp_path: Path) -> None:
    done = check(tmp_path, "--explain")
    assert done.returncode == 0
    title, *lines = done.stdout.splitlines()
    assert title.startswith("Rules for jobs")
    listed = [line.split(maxsplit=2) for line in lines]
    assert listed == [[rule.code, rule.severity, rule.text] for rule in RULES.values()]


def test_nothing_to_check_is_said(folder: Path) -> None:
    done = check(folder)
    assert done.returncode == 1
    assert "no job file was given" in done.stderr


@pytest.mark.parametrize(("days", "said"), [(180, False), (181, True)])
def test_facts_of_half_a_year_ago_get_a_notice(days: int, said: bool) -> None:
    known = catalog.standard()
    text = facts_notice(known, known.compiled + timedelta(days=days))
    assert text.startswith(f"{catalog.FACTS}: the facts date from {known.compiled}; ") == said
    assert bool(text) == said

"""Rules and severities that a project has in vertex.toml, as its `vertex-launch check` applies them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.tests.casebook import CPU, GOOD, GOOD_TUNING, P0, Edits, Part, alone, edited, write
from launcher.tests.running import SOURCE, while_fresh
from launcher.tests.test_check import TOML
from tests.conftest import ROOT
from vertex_launch import rules, settings
from vertex_launch.rules import RULES, Rule, house, pools

MODULE = (ROOT / "launcher/tests/house_rules.py").read_text(encoding="utf-8")
PAGE = (ROOT / "launcher/docs/house-rules.md").read_text(encoding="utf-8")
OTHER_IMAGE: Edits = alone(CPU, **{"containerSpec.imageUri": "registry/other:latest"})
OURS_OFF = 'image-differs = "off"\n'

Done = subprocess.CompletedProcess[str]


def launch(folder: Path, *arguments: str) -> Done:
    """A command in a folder, as a user sees it while the facts are fresh."""
    command = [sys.executable, "-m", "vertex_launch", *arguments]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True)
    done.stderr = while_fresh(done.stderr)
    assert "Traceback" not in done.stderr
    return done


def prepare(folder: Path, table: str, module: str = "", edits: Edits | None = None, base: Part = GOOD) -> None:
    """A project with this table [rules], this module, and a job, which is good but for these edits."""
    (folder / "vertex.toml").write_text(f"{TOML}[rules]\n{table}\n")
    if module:
        (folder / "house_rules.py").write_text(module)
    write(folder, edited(edits or {}, base))


def check(folder: Path, table: str, module: str = "", edits: Edits | None = None, base: Part = GOOD) -> Done:
    """Check the job of such a project."""
    prepare(folder, table, module, edits, base)
    return launch(folder, "check", "run.yaml")


def codes(done: Done) -> list[tuple[str, str]]:
    """The severity and the code of each finding."""
    return re.findall(r"^run\.yaml:\d+: (error|warning): .*\(([a-z-]+)\)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("severity", "found", "status"),
    [("error", [("error", "image-tag")], 1), ("warning", [("warning", "image-tag")], 0), ("off", [], 0)],
)
def test_a_rule_has_the_severity_that_vertex_toml_gives_it(
    severity: str, found: list[tuple[str, str]], status: int, tmp_path: Path
) -> None:
    done = check(tmp_path, f'{OURS_OFF}image-tag = "{severity}"', edits=OTHER_IMAGE)
    assert (codes(done), done.returncode) == (found, status)


@pytest.mark.parametrize("command", [["run"], ["submit", "--yes"], ["plan", "--gradient-bytes=1e6"]], ids=" ".join)
def test_a_warning_that_was_made_an_error_ends_every_command(command: list[str], tmp_path: Path) -> None:
    prepare(tmp_path, f'{OURS_OFF}image-tag = "error"', edits=OTHER_IMAGE)
    done = launch(tmp_path, *command, "run.yaml")
    assert (done.returncode, codes(done)) == (1, [("error", "image-tag")])


def test_what_vertex_ai_refuses_does_not_run_here_whatever_the_house_thinks(tmp_path: Path) -> None:
    small = {f"{P0}.diskSpec": {"bootDiskSizeGb": 50}}
    assert codes(check(tmp_path, 'disk-size = "warning"', edits=small)) == [("warning", "disk-size")]
    done = launch(tmp_path, "run", "run.yaml")
    assert (done.returncode, codes(done)) == (1, [("error", "disk-size")])


def test_the_local_service_has_the_rules_of_vertex_ai_alone(tmp_path: Path) -> None:
    prepare(tmp_path, 'image-tag = "error"\ndisk-size = "off"\nmodule = "house_rules.py"', MODULE)
    assert rules.applied(settings.for_local(settings.load(tmp_path / "vertex.toml"))) == RULES


def test_the_page_shows_a_module_that_works(tmp_path: Path) -> None:
    table, module = re.findall(r"^```(?:toml|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert module == MODULE
    table = table.removeprefix("[rules]\n")
    many = {"maxTrialCount": 51, "trialJobSpec.scheduling.timeout": "86401s", f"trialJobSpec.{P0}.machineSpec": CPU}
    done = check(tmp_path, table, module, many, GOOD_TUNING)
    assert {*codes(done)} >= {("error", "house-trials"), ("error", "house-timeout"), ("warning", "house-machine")}
    assert ": trialJobSpec.workerPoolSpecs[0].machineSpec.machineType: n1-standard-8 has no discount; " in done.stderr
    few = {"maxTrialCount": 50, "trialJobSpec.scheduling.timeout": "86400s"}
    assert [code for _, code in codes(check(tmp_path, table, module, few, GOOD_TUNING)) if "house" in code] == []


def test_a_rule_of_the_project_has_the_severity_of_vertex_toml_too(tmp_path: Path) -> None:
    longer: Edits = {"scheduling.timeout": "90000s"}
    table = 'module = "house_rules.py"\nhouse-timeout = '
    assert codes(check(tmp_path, f'{table}"warning"', MODULE, longer)) == [("warning", "house-timeout")]
    assert codes(check(tmp_path, f'{table}"off"', MODULE, longer)) == []


def test_explanations_know_the_rules_and_severities_of_the_project(tmp_path: Path) -> None:
    prepare(tmp_path, 'image-tag = "off"\nmodule = "house_rules.py"', MODULE)
    listed = [line.split()[:2] for line in launch(tmp_path, "check", "--explain").stdout.splitlines()[1:]]
    ours = [[rule.code, "off" if rule.code == "image-tag" else rule.severity] for rule in RULES.values()]
    assert listed == [*ours, ["house-timeout", "error"], ["house-machine", "warning"], ["house-trials", "error"]]
    assert (
        "severity   off, set under [rules] in vertex.toml\n"
        in launch(tmp_path, "check", "--explain", "image-tag").stdout
    )
    assert launch(tmp_path, "check", "--explain", "house-timeout", "house-trials").stdout == (
        "house-timeout: A job ends within a day.\n\n"
        "severity   error\ncertainty  documented\n"
        "otherwise  The job occupies machines that other teams need.\nsource     handbook.example.com/training\n\n"
        "house-trials: A tuning job has at most 50 trials.\n\n"
        "severity   error\ncertainty  documented\n"
        "otherwise  Vertex AI might accept the job, but the project's own rules don't allow it.\n"
        "source     handbook.example.com/training\n"
    )


def test_json_tells_of_a_rule_of_the_project_as_of_ours(tmp_path: Path) -> None:
    prepare(tmp_path, 'module = "house_rules.py"', MODULE, {"scheduling.timeout": "90000s"})
    (told,) = json.loads(launch(tmp_path, "check", "run.yaml", "--json").stdout)
    assert (told["code"], told["severity"], told["source"]) == (
        "house-timeout",
        "error",
        "handbook.example.com/training",
    )


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('image-tga = "error"', 'vertex.toml: rules: there is no rule "image-tga"; did you mean image-tag?'),
        (
            'zzz = "off"',
            'vertex.toml: rules: there is no rule "zzz"; to list all rules, run check --explain without a code',
        ),
        (
            'image-tag = "fatal"',
            'vertex.toml: rules: the severity "fatal" of "image-tag" isn\'t valid; use one of error, warning, off',
        ),
        (
            "image-tag = false",
            'vertex.toml: rules: the severity "False" of "image-tag" isn\'t valid; use one of error, warning, off',
        ),
        (
            'form = "off"',
            'vertex.toml: rules: the severity of "form" can\'t be changed; '
            "remove the key, because a file that breaks this rule isn't a valid job",
        ),
        (
            'module = "house_rules"',
            'vertex.toml: rules: module: "house_rules" isn\'t a Python file;'
            ' write module = "house_rules.py", or the name of your own file',
        ),
        (
            'module = "house_rulez.py"',
            "vertex.toml: rules: module: house_rulez.py: the file doesn't exist; did you mean house_rules.py?",
        ),
    ],
)
def test_a_line_that_means_nothing_is_one_sentence(table: str, told: str, tmp_path: Path) -> None:
    done = check(tmp_path, table, MODULE)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{told}\n")


def test_what_makes_a_job_a_job_keeps_its_severity() -> None:
    shape = {rule.code for rule in vars(pools).values() if isinstance(rule, Rule) and rule.severity == "error"}
    assert {*house.KEPT} == {"form"} | shape


def test_a_table_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    prepare(tmp_path, "")
    (tmp_path / "vertex.toml").write_text(f'{TOML}rules = "strict"\n')
    done = launch(tmp_path, "check", "run.yaml")
    assert (
        done.stderr
        == 'vertex.toml: rules: must be a table, not text; write [rules], followed by lines such as CODE = "error"\n'
    )


DECLARED = """\
from vertex_launch.rules import *


@rule({declaration}, "inferred", "us")
def one(job, context):
    "A job is good."
    {body}
"""


def declared(body: str, declaration: str = '"house-a", "warning"') -> str:
    """A module with one rule."""
    return DECLARED.format(declaration=declaration, body=body)


MEND = 'fix the rule, or write house-a = "off" under [rules] in vertex.toml'
REMOVE = "fix the error, or remove module from [rules] in vertex.toml"


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (
            "import os\nimport acme\n",
            f":2: this file can't be imported (ModuleNotFoundError: No module named 'acme'); {REMOVE}",
        ),
        ("x = [\n", f":1: this file can't be imported (SyntaxError: '[' was never closed); {REMOVE}"),
        ("import sys\nsys.exit()\n", f":2: this file can't be imported (SystemExit); {REMOVE}"),
        ("x = 1\n", ": this file doesn't declare a rule; use @rule(...) to decorate a function that yields findings"),
        (declared('yield {}["team"]'), f":7: the rule house-a failed (KeyError: 'team'); {MEND}"),
        (declared("pass"), f": the rule house-a failed (TypeError: 'NoneType' object is not iterable); {MEND}"),
        (
            declared("yield 'bad'"),
            f": the rule house-a failed (TypeError: the rule yielded 'bad', which isn't a Finding); {MEND}",
        ),
        (
            declared("yield", '"image-tag", "error"'),
            ":4: another rule already has the code image-tag; choose a different code",
        ),
        (
            declared("yield", '"module", "error"'),
            ":4: another rule already has the code module; choose a different code",
        ),
        (
            declared("yield", '"house-a", "fatal"'),
            ':4: the severity "fatal" of house-a isn\'t valid; use error or warning',
        ),
        (
            declared("yield").replace('"A job is good."', ""),
            ":4: the rule house-a doesn't have a docstring; add a docstring that states the rule",
        ),
    ],
)
def test_a_faulty_module_is_one_sentence(module: str, told: str, tmp_path: Path) -> None:
    done = check(tmp_path, 'module = "house_rules.py"', module)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"house_rules.py{told}\n")


def test_two_rules_of_one_code_are_told_apart_by_their_line(tmp_path: Path) -> None:
    done = check(tmp_path, 'module = "house_rules.py"', declared("yield") + declared("yield").replace("one", "other"))
    assert done.stderr == "house_rules.py:11: another rule already has the code house-a; choose a different code\n"


def test_a_rule_that_was_switched_off_cannot_fail(tmp_path: Path) -> None:
    done = check(tmp_path, 'module = "house_rules.py"\nhouse-a = "off"', declared("yield 1 / 0"))
    assert done.stdout == "run.yaml: ok\n"


def test_a_fault_in_what_a_module_imports_is_told_where_it_imports_that(tmp_path: Path) -> None:
    (tmp_path / "acme_rules.py").write_text("\n\n\nx = [\n")
    done = check(tmp_path, 'module = "house_rules.py"', "import os\nfrom acme_rules import *\n")
    assert (
        done.stderr == f"house_rules.py:2: this file can't be imported (SyntaxError: '[' was never closed); {REMOVE}\n"
    )
    (tmp_path / "acme_rules.py").write_text("\n\n\n" + declared("yield", '"image-tag", "error"'))
    done = check(tmp_path, 'module = "house_rules.py"', "from acme_rules import *\n")
    assert done.stderr == "house_rules.py: another rule already has the code image-tag; choose a different code\n"


def test_a_rule_of_ours_that_a_module_imports_is_no_other_rule(tmp_path: Path) -> None:
    ours = "from vertex_launch.rules.containers import image_fixed\n"
    assert check(tmp_path, 'module = "house_rules.py"', ours + MODULE).stdout == "run.yaml: ok\n"

"""Scripts behind a shell's -c that hide the end of the trainer, and those that do not."""

import subprocess
from pathlib import Path

import pytest

from vertex_launch.rules import exit_codes, shells

FAILS = "#!/bin/sh\nexit 7\n"


def hidden(script: str, *start: str) -> tuple[str, str] | None:
    """What hides the exit code in this script, and the cure."""
    text = shells.inline([("", word) for word in (*(start or ("bash", "-c")), script)])
    read = shells.read(script, {})
    assert text
    assert read
    return exit_codes.hidden(read, text)


@pytest.mark.parametrize(
    ("script", "cause", "cure"),
    [
        ("python train.py 2>&1 | tee log", "the pipe", "begin the script with set -o pipefail"),
        ("set -e; python -m trainer.task |& tee log", "the pipe", "begin the script with set -o pipefail"),
        ("exec python train.py | cat", "the pipe", "begin the script with set -o pipefail"),
        (
            'trap "gsutil cp log gs://b" EXIT; python train.py | tee log',
            "the pipe",
            "begin the script with set -o pipefail",
        ),
        ("python train.py || true", "||", "remove ||, or end the command after || with exit 1"),
        (
            "set -e; timeout 60 python train.py || echo failed",
            "||",
            "remove ||, or end the command after || with exit 1",
        ),
        ("python train.py && gsutil cp a b || :", "||", "remove ||, or end the command after || with exit 1"),
        ("python train.py; gsutil cp -r a gs://b/", "gsutil cp -r a gs://b/", "write python train.py || exit 1"),
        ("cd /app\ntorchrun \\\n  train.py\necho done", "echo done", "write torchrun train.py || exit 1"),
        ("python train.py; exit 0", "exit 0", "write python train.py || exit 1"),
        ('python train.py; echo "exit code $?"', 'echo "exit code $?"', "write python train.py || exit 1"),
        ("python train.py; code=$?; echo $code; exit 0", "exit 0", "write python train.py || exit 1"),
        ("set -e; python train.py && echo ok; ls", "ls", "write python train.py || exit 1"),
        ("set -e; set +e; python train.py; ls", "ls", "write python train.py || exit 1"),
        ("(python train.py; ls)", "ls", "write python train.py || exit 1"),
        ("python train.py; python evaluate.py", "python evaluate.py", "write python train.py || exit 1"),
        ("case $A in 0) ./train.sh; ls;; esac", "ls", "write ./train.sh || exit 1"),
        ("for f in 0 1; do python train.py; done", "the loop's next iteration", "write python train.py || exit 1"),
        ("set -e; python train.py & ls; wait", "&", "remove &, or end the script with wait $!"),
        ("python train.py &", "&", "remove &, or end the script with wait $!"),
        ("for g in 0 1; do python train.py & done; wait", "&", "remove &, or end the script with wait $!"),
        ("if python train.py; then echo ok; fi", "if", "add else exit 1"),
    ],
)
def test_what_hides_the_exit_code_is_named_with_a_cure(script: str, cause: str, cure: str, tmp_path: Path) -> None:
    found = hidden(script)
    assert found
    assert found[0].startswith(f"{cause} hides the exit code of ")
    assert found[1] == cure
    for name in ("python", "torchrun", "train.sh", "gsutil"):
        (tmp_path / name).write_text(FAILS if name != "gsutil" else "#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", script.replace("cd /app", ":").replace("python evaluate.py", "ls")],
        cwd=tmp_path,
        env={"PATH": path},
    )
    assert done.returncode == 0 or cause.startswith("the loop's next")  # which may end well


def test_a_shell_without_pipefail_is_replaced_by_bash() -> None:
    assert hidden("python train.py | tee log", "sh", "-c") == (
        "the pipe hides the exit code of python train.py",
        "run the script with bash, and begin the script with set -o pipefail",
    )
    assert hidden("python train.py | tee log", "bash", "-eo", "pipefail", "-c") is None
    assert hidden("python train.py; ls", "bash", "-ec") is None


@pytest.mark.parametrize(
    "script",
    [
        "set -euo pipefail; python train.py | tee log",
        "set -e\npython train.py\ngsutil cp a b",
        "exec python train.py; echo never",
        "if ! python train.py; then exit 1; fi",
        "if python train.py; then echo ok; else exit 1; fi",
        "cd /app && python train.py",
        "pip install -r a.txt; python -c 'import torch'; nvidia-smi; python train.py",
        "python -m pip install x; python download.py; python train.py",
        "[ -d data ] || gsutil cp -r gs://b data; mkdir -p x || true; python train.py",
        "python train.py || { echo failed; exit 1; }",
        "python train.py || exit $?",
        "python train.py || python train.py --resume",
        "python train.py && echo ok",
        "until python train.py; do sleep 5; done",
        "while ! python train.py; do sleep 5; done",
        "tensorboard --logdir x & python train.py",
        "python train.py > >(tee log) 2>&1",
        "yes | python train.py",
        "if [ $RANK = 0 ]; then python train.py --chief; else python train.py; fi",
        "run() { python train.py; }; run; echo done",  # what becomes of a function is not claimed
        "echo a | tee log; ls || true",  # nothing trains
        "python train.py\n# done",
    ],
)
def test_a_script_that_ends_as_its_trainer_is_right(script: str) -> None:
    assert hidden(script) is None


@pytest.mark.parametrize(
    "script",
    [
        "python train.py; status=$?; gsutil cp log gs://b; exit $status",
        "python train.py & pid=$!; wait $pid",
        "python train.py | tee log; exit ${PIPESTATUS[0]}",
        "python train.py; if [ $? -ne 0 ]; then exit 1; fi; echo ok",
        "trap 'exit 1' ERR; python train.py; echo ok",
        "{ python train.py; echo $? > code; } | tee log; exit $(cat code)",
    ],
)
def test_of_a_script_that_looks_at_exit_codes_nothing_is_claimed(script: str) -> None:
    assert hidden(script) is None


def test_a_script_that_cannot_be_read_or_is_huge_is_none() -> None:
    assert shells.read("if then fi )", {}) is None
    assert shells.read("echo " + "x" * shells.LONGEST, {}) is None

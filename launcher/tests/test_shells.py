"""What becomes of a trial's flags behind a shell's -c, or Python's."""

import subprocess
import sys

import pytest

from vertex_launch.rules import shells

ALL = 'python train.py "$@"'
FLAGS = ("--rate=0.1", "--size=3")
SHOW = f"{sys.executable} -c 'import sys; print(sys.argv[1:])'"


def lost(*program: str) -> tuple[str, str] | None:
    """What becomes of flags behind this program, and the cure."""
    text = shells.inline([(str(place), word) for place, word in enumerate(program)])
    return shells.lost(text) if text else None


@pytest.mark.parametrize(
    "start",
    [
        ("sh", "-c"),
        ("/bin/bash", "-lc"),
        ("/usr/bin/env", "bash", "-ec"),
        ("env", "MODE=fast", "dash", "-c"),
        ("bash", "-euo", "pipefail", "-c"),
        ("bash", "-ceuo", "pipefail"),
        ("bash", "-o", "errexit", "-c", "-u"),
        ("bash", "--norc", "-c", "--"),
        ("tini", "--", "zsh", "-c"),
        ("timeout", "3600", "bash", "-xc"),
    ],
)
def test_a_script_behind_any_shell_loses_the_flags_that_it_does_not_name(start: tuple[str, ...]) -> None:
    assert lost(*start, "python train.py")
    assert lost(*start, ALL)  # the first flag
    assert not lost(*start, ALL, "_")


@pytest.mark.parametrize(
    "script",
    [
        "python train.py",
        "echo '$@'; python train.py",
        "echo \\$@; python train.py",
        'python train.py # with "$@"',
        "# don't pass $*\npython train.py",
        "python -c 'print(\"$1\")'",
        'echo $# "${#@}" $HOME $$ $?',
        "source /opt/venv/bin/activate && python train.py",
        ". /opt/conda/etc/profile.d/conda.sh; python train.py",
        "for epoch in 1 2; do python train.py; done",
        "",
    ],
)
def test_a_script_that_names_no_parameter_trains_the_defaults(script: str) -> None:
    for words in ((script,), (script, "_")):
        found = lost("bash", "-c", *words)
        assert found
        assert "trains with the defaults" in found[0]


@pytest.mark.parametrize(
    "script",
    [
        ALL,
        "python train.py $*",
        "python train.py ${@:1}",
        'python train.py "${@}"',
        "python train.py $1 $2",
        "python train.py ${1} ${2:-}",
        "echo don\\'t; python train.py \"$@\"; echo isn\\'t",
        'echo "isn\'t"; python train.py "it\'s $*"',
        "while getopts r: name; do :; done",
        "for word; do echo $word; done",
        "source ./run.sh",
        "eval 'python train.py \"$@\"'",
        "python train.py --rate $argv",
    ],
)
def test_a_script_that_may_use_its_parameters_is_right(script: str) -> None:
    assert lost("bash", "-c", script, "_") is None


def test_a_script_that_names_its_first_word_needs_no_other() -> None:
    assert lost("bash", "-c", 'python train.py "$0" "$@"') is None
    assert lost("bash", "-c", "python train.py $0 $1") is None


def test_parameters_in_front_of_the_flags_are_no_use_of_them() -> None:
    assert lost("bash", "-c", "python train.py $1", "_", "--epochs=3")
    assert lost("bash", "-c", 'exec "$@"', "_", "python", "train.py") is None


@pytest.mark.parametrize("program", [("bash", "run.sh"), ("python", "-m", "train"), ("train",), (), ("-c", "x")])
def test_nothing_is_claimed_of_a_program_that_is_no_text(program: tuple[str, ...]) -> None:
    assert lost(*program) is None


@pytest.mark.parametrize(
    ("code", "is_lost"),
    [
        ("print(1)", True),
        ("import subprocess; subprocess.run(['python', 'train.py'])", True),
        ("import sys; print(sys.argv[1:])", False),
        ("import argparse; print(argparse.ArgumentParser().parse_args())", False),
        ("import train; train.main()", False),
        ("import runpy; runpy.run_module('train')", False),
        ("exec(open('train.py').read())", False),
        ("print(", False),
    ],
)
def test_code_loses_its_flags_where_it_certainly_reads_none(code: str, is_lost: bool) -> None:
    assert bool(lost("python3", "-uc", code)) is is_lost
    assert bool(lost("/usr/bin/env", "python3", "-W", "ignore", "-c", code)) is is_lost


def test_the_cure_is_the_line_to_write() -> None:
    found = lost("bash", "-c", "cd /app && torchrun --nproc-per-node=8 train.py --epochs 3 2>&1 | tee log", "_")
    assert found
    assert found[1] == 'write torchrun --nproc-per-node=8 train.py --epochs 3 "$@"'
    again = lost("bash", "-c", "make train")
    assert again
    assert again[1] == (
        'write "$@" after the command that starts the program in the script. '
        "After the script, add a placeholder such as _ for $0"
    )


@pytest.mark.parametrize(
    ("script", "words", "arrive"),
    [
        (SHOW, (), "[]"),
        (f'{SHOW} "$@"', (), "['--size=3']"),
        (f'{SHOW} "$@"', ("_",), "['--rate=0.1', '--size=3']"),
        (f'{SHOW} "$0" "$@"', (), "['--rate=0.1', '--size=3']"),
        (f"{SHOW} $1", ("_", "--epochs=3"), "['--epochs=3']"),
    ],
)
def test_a_real_shell_hands_on_what_is_said(script: str, words: tuple[str, ...], arrive: str) -> None:
    done = subprocess.run(["sh", "-c", script, *words, *FLAGS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == arrive
    assert (lost("sh", "-c", script, *words) is None) is all(flag in arrive for flag in FLAGS)

"""The end of a script of one's own in a job with reducers: the chief's process says what NCCL's log tells of them."""

import json
import sys
from pathlib import Path

import pytest

from trainer.cluster.script import Script
from trainer.vertex import nccl

LOG = "h:1:2 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/RS/0\nAllReduce: 67108864 Bytes -> Algo COLLNET_CHAIN\n"
LOGS = f"""
import sys
from trainer.vertex import nccl
if sys.argv[1] == "with-nccl":
    nccl._path().write_text({LOG!r})
"""


@pytest.mark.parametrize(
    ("word", "is_chief", "told"),
    [
        ("with-nccl", True, [("in use", "4 reducers are in use (COLLNET_CHAIN; 1 ranks connect)")]),
        ("with-nccl", False, []),
        ("without", True, [("not known", "NCCL's log doesn't show whether the 4 reducers are used: NCCL")]),
    ],
)
def test_the_chief_says_whether_reducers_were_used(
    word: str,
    is_chief: bool,
    told: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in nccl.LOGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "script.py"
    script.write_text(LOGS)
    try:
        Script(str(script), (word,)).run_with_reducers(4, is_chief=is_chief)
    finally:
        nccl._path().unlink(missing_ok=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["reducers"] for line in lines] == [state for state, _ in told]
    assert all(line["message"].startswith(words) for line, (_, words) in zip(lines, told, strict=True))

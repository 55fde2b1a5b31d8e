"""A command for a loop of one's own that cannot work is refused before anybody waits."""

from pathlib import Path

import pytest

from tests import own_loop


def test_a_script_or_module_that_is_not_there_is_refused_in_one_sentence_before_anybody_waits(tmp_path: Path) -> None:
    assert own_loop.refused(tmp_path, "no.py").startswith(f"no.py: no such script in {tmp_path}; ")
    assert own_loop.refused(tmp_path, "-m", "no.such").startswith("no.such: no such module")
    assert own_loop.refused(tmp_path) == (
        "the command doesn't specify a script; use python -m trainer.cluster.run [-m] SCRIPT ARGS"
    )


@pytest.mark.parametrize("pool", ["workerpool2", "workerpool3"])
def test_a_replica_that_does_not_train_is_refused_in_one_sentence(tmp_path: Path, pool: str) -> None:
    (tmp_path / "loop.py").touch()
    told = own_loop.refused(tmp_path, "loop.py", task=pool)
    assert told.startswith(f"{pool}-0: only pools 0 and 1 train; use the evaluator's command in pool 3")

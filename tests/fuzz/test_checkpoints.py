"""Commit markers and files of a checkpoint: any damage is a reason, and never an error."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.shapes import as_json, changed, torn
from trainer.checkpoints import commit_marker
from trainer.checkpoints.commit_marker import MARKER

FILES = {"model.pt": b"weights" * 50, "shards/0.bin": bytes(range(256)), "empty": b""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole checkpoint, the only one; each case damages one file of it for a while."""
    folder: Path = commit_marker.numbered(tmp_path_factory.mktemp("checkpoints"), 40)
    commit_marker.create_empty(folder)
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    commit_marker.commit(folder)
    assert not why(folder)
    return folder


@contextlib.contextmanager
def damaged(path: Path, content: bytes) -> Iterator[None]:
    """Have a file hold other bytes until the end of the block."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def why(folder: Path) -> str:
    reason = commit_marker.why_incomplete(folder) or commit_marker.why_corrupt(folder)
    assert isinstance(reason, str)
    return reason


MARKED = {
    "files": {name: len(content) for name, content in FILES.items()},
    "crc32": {"model.pt": 1, "shards/0.bin": 2, "empty": 0},
}


@example(b"[" * 10**5)
@given(as_json(changed(st.just(MARKED))))
def test_any_marker_has_a_reason_or_counts(folder: Path, text: bytes) -> None:
    warnings = list[str]()
    with damaged(folder / MARKER, text):
        reason = why(folder)
        assert commit_marker.latest(folder.parent, warnings.append) == (None if reason else folder)
    assert len(warnings) == bool(reason)


@given(st.sampled_from(sorted(FILES)), st.data())
def test_any_change_of_a_file_has_a_reason(folder: Path, name: str, data: st.DataObject) -> None:
    content = data.draw(torn(st.just(FILES[name])))
    with damaged(folder / name, content):
        assert bool(why(folder)) == (content != FILES[name])


@example(b'{"step": Infinity}')
@given(as_json(changed(st.just({"step": 40, "metrics": {"loss": 0.5}}))))
def test_any_file_beside_the_folders_spares_one_or_none(folder: Path, text: bytes) -> None:
    root = folder.parent
    (root / "best.json").write_bytes(text)
    assert all(spared.name.startswith("step-") for spared in commit_marker.spared(root))
    commit_marker.prune(root, keep=1)
    assert not why(folder)

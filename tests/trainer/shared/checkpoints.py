"""Checkpoints without a training: whole ones, and damaged ones."""

from pathlib import Path

from trainer.checkpoints import commit_marker


def whole(root: Path, number: int) -> Path:
    """A committed folder with a file and a file in a folder of its own."""
    folder = commit_marker.numbered(root, number)
    commit_marker.create_empty(folder)
    (folder / "weights").write_bytes(bytes(100))
    (folder / "part").mkdir()
    (folder / "part/0").write_bytes(bytes(10))
    commit_marker.commit(folder)
    return folder


def damage(file: Path) -> None:
    """Invert 64 bytes in the middle of a file, whose size stays."""
    content = bytearray(file.read_bytes())
    middle = slice(len(content) // 2 - 32, len(content) // 2 + 32)
    content[middle] = bytes(255 - byte for byte in content[middle])
    file.write_bytes(content)

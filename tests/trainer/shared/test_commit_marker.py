import json
import os
import shutil
import threading
import zlib
from pathlib import Path

import pytest

from tests.checkpoints import damage, whole
from trainer.checkpoints import commit_marker
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import CHUNK, checksum, write_json

DAMAGED = "weights is damaged: its contents differ from the saved contents"


def unheard(message: str) -> None:
    raise AssertionError(f"an unexpected warning: {message}")


def test_a_committed_folder_is_whole(tmp_path: Path) -> None:
    folder = whole(tmp_path, 3)
    assert commit_marker.why_incomplete(folder) == ""
    assert commit_marker.latest(tmp_path, unheard) == folder
    assert commit_marker.number(folder) == 3


def test_a_folder_that_another_process_removes_meanwhile_is_no_error(tmp_path: Path) -> None:
    for number in range(20):
        folder = whole(tmp_path, number)
        for name in range(200):
            (folder / f"part/{name}").touch()
        removal = threading.Thread(target=shutil.rmtree, args=(folder,))
        removal.start()
        while not commit_marker.why_incomplete(folder):
            pass
        removal.join()


def test_a_folder_without_a_seal_was_never_finished(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / commit_marker.MARKER).unlink()
    assert commit_marker.why_incomplete(folder) == "it was never finished"


def test_a_seal_that_is_still_being_written_does_not_count(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / commit_marker.MARKER).rename(folder / f"{commit_marker.MARKER}.partial")
    assert commit_marker.why_incomplete(folder) == "it was never finished"


@pytest.mark.parametrize(("name", "size"), [("weights", 99), ("part/0", 0), ("weights", 101)])
def test_a_file_of_another_size_breaks_the_folder(tmp_path: Path, name: str, size: int) -> None:
    folder = whole(tmp_path, 1)
    (folder / name).write_bytes(bytes(size))
    assert commit_marker.why_incomplete(folder) == f"{name} is missing or truncated"


def test_a_missing_file_breaks_the_folder(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / "part/0").unlink()
    assert commit_marker.why_incomplete(folder) == "part/0 is missing or truncated"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": []}', '{"files": null}', "null", "\x00"])
def test_a_broken_seal_breaks_the_folder(tmp_path: Path, text: str) -> None:
    folder = whole(tmp_path, 1)
    (folder / commit_marker.MARKER).write_text(text)
    assert "committed.json can't be read" in commit_marker.why_incomplete(folder)


def test_a_seal_that_is_no_text_breaks_the_folder(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / commit_marker.MARKER).write_bytes(b"\xff\xfe")
    assert "committed.json can't be read" in commit_marker.why_incomplete(folder)


def test_a_file_that_came_later_breaks_nothing(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / "notes").write_text("good run")
    assert commit_marker.why_incomplete(folder) == ""


def test_the_newest_whole_folder_is_taken_and_newer_broken_ones_are_named(tmp_path: Path) -> None:
    wanted = whole(tmp_path, 9)
    whole(tmp_path, 2)
    (whole(tmp_path, 10) / "weights").unlink()
    commit_marker.create_empty(commit_marker.numbered(tmp_path, 100))
    warnings: list[str] = []
    assert commit_marker.latest(tmp_path, warnings.append) == wanted
    assert [warning.partition(": ")[0].rpartition("-")[2] for warning in warnings] == ["000000100", "000000010"]
    assert "never finished" in warnings[0]
    assert "weights is missing" in warnings[1]


@pytest.mark.parametrize("root", [".", "not/there"])
def test_where_nothing_was_saved_there_is_nothing_to_resume(tmp_path: Path, root: str) -> None:
    assert commit_marker.latest(tmp_path / root, unheard) is None


def test_other_things_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("step-latest", "step-000000001.bak", "notes"):
        (tmp_path / name).mkdir()
    newest = whole(tmp_path, 2)
    assert commit_marker.latest(tmp_path, unheard) == newest
    commit_marker.prune(tmp_path, 1)
    assert len(list(tmp_path.iterdir())) == 4


def test_create_empty_clears_what_an_interrupted_run_left(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    commit_marker.create_empty(folder)
    assert list(folder.iterdir()) == []


def test_the_seal_lists_every_file_with_its_size_and_checksum(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    assert json.loads((folder / commit_marker.MARKER).read_text()) == {
        "files": {"part/0": 10, "weights": 100},
        "crc32": {"part/0": zlib.crc32(bytes(10)), "weights": zlib.crc32(bytes(100))},
    }


def test_the_checksum_of_a_large_file_is_that_of_all_its_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * (CHUNK // 100)
    (tmp_path / "large").write_bytes(content)
    assert checksum(tmp_path / "large") == zlib.crc32(content)


def test_what_the_writer_has_summed_up_is_not_read_again(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    commit_marker.commit(folder, {"weights": 5})
    assert json.loads((folder / commit_marker.MARKER).read_text())["crc32"] == {
        "part/0": zlib.crc32(bytes(10)),
        "weights": 5,
    }


def test_a_file_that_another_machine_wrote_elsewhere_is_named(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / commit_marker.MARKER).unlink()
    with pytest.raises(
        TrainerError, match=r"doesn't contain elsewhere, which another machine has written; .* baseOutputDirectory"
    ):
        commit_marker.commit(folder, {"weights": 5, "elsewhere": 6})
    assert commit_marker.why_incomplete(folder) == "it was never finished"


def test_content_that_changed_at_the_same_size_is_found_by_who_reads_it_all_and_by_nobody_else(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    assert commit_marker.why_corrupt(folder) == ""
    damage(folder / "weights")
    assert commit_marker.why_corrupt(folder) == DAMAGED
    assert commit_marker.why_incomplete(folder) == ""


def test_each_of_several_readers_reads_a_share_and_together_they_read_all(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    damage(folder / "weights")
    assert [commit_marker.why_corrupt(folder, reader, 3) for reader in range(3)] == ["", DAMAGED, ""]


def test_a_file_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / "part/0").unlink()
    assert "it can't be read ([Errno 2] No such file" in commit_marker.why_corrupt(folder)


def test_what_cannot_be_read_for_a_while_counts_again_afterwards(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    (folder / "part").rename(tmp_path / "away")
    commit_marker.invalidate(folder, commit_marker.why_corrupt(folder))
    (tmp_path / "away").rename(folder / "part")
    assert commit_marker.latest(tmp_path, unheard) == folder


def test_a_damaged_newest_folder_is_named_and_the_one_before_is_taken(tmp_path: Path) -> None:
    wanted, newest = whole(tmp_path, 1), whole(tmp_path, 2)
    damage(newest / "weights")
    warnings: list[str] = []
    assert commit_marker.latest(tmp_path, warnings.append) == wanted
    assert warnings == [f"skipped {newest}: {DAMAGED}"]


def test_a_folder_that_was_found_damaged_takes_nobody_s_place_and_is_not_read_again(tmp_path: Path) -> None:
    folders = [whole(tmp_path, number) for number in (1, 2, 3)]
    damage(folders[2] / "weights")
    commit_marker.latest(tmp_path, lambda _: None)
    commit_marker.prune(tmp_path, 1)
    assert sorted(tmp_path.iterdir()) == folders[1:]
    assert commit_marker.why_incomplete(folders[2]) == DAMAGED


def test_a_seal_from_before_there_were_checksums_vouches_for_sizes(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    write_json(folder / commit_marker.MARKER, {"files": {"part/0": 10, "weights": 100}})
    assert commit_marker.latest(tmp_path, unheard) == folder
    (folder / "weights").write_bytes(bytes(99))
    assert commit_marker.why_incomplete(folder) == "weights is missing or truncated"


def test_prune_keeps_the_newest_whole_folders(tmp_path: Path) -> None:
    folders = [whole(tmp_path, number) for number in (5, 20, 100, 1000)]
    commit_marker.prune(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == folders[2:]


def test_a_broken_folder_never_takes_the_place_of_a_whole_one(tmp_path: Path) -> None:
    kept = [whole(tmp_path, 1), whole(tmp_path, 2)]
    broken = whole(tmp_path, 3)
    (broken / "weights").unlink()
    commit_marker.prune(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == [*kept, broken]


def test_prune_removes_broken_folders_that_are_older(tmp_path: Path) -> None:
    commit_marker.create_empty(commit_marker.numbered(tmp_path, 1))
    kept = [whole(tmp_path, 2), whole(tmp_path, 3)]
    commit_marker.prune(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == kept


def test_prune_spares_the_one_that_a_file_names_until_it_names_another_one(tmp_path: Path) -> None:
    folders = [whole(tmp_path, number) for number in (1, 2, 3, 4)]
    write_json(tmp_path / "best.json", {"step": 1, "metrics": {"accuracy": 0.9}})
    write_json(tmp_path / "paper.json", {"step": 3})
    commit_marker.prune(tmp_path, 1)
    assert sorted(tmp_path.glob("step-*")) == [folders[0], *folders[2:]]
    write_json(tmp_path / "best.json", {"step": 4, "metrics": {"accuracy": 0.95}})
    commit_marker.prune(tmp_path, 1)
    assert sorted(tmp_path.glob("step-*")) == folders[2:]


@pytest.mark.parametrize("text", ["", "[]", '{"step": "two"}', '{"metrics": {}}'])
def test_a_file_that_names_no_step_spares_nothing(tmp_path: Path, text: str) -> None:
    folders = [whole(tmp_path, 1), whole(tmp_path, 2)]
    (tmp_path / "best.json").write_text(text)
    assert commit_marker.spared(tmp_path) == set()
    commit_marker.prune(tmp_path, 1)
    assert sorted(tmp_path.glob("step-*")) == folders[1:]


def test_with_fewer_whole_folders_than_to_keep_nothing_goes(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    commit_marker.prune(tmp_path, 2)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_bit_that_flips_in_a_key_of_the_seal_does_not_turn_checksums_off(tmp_path: Path) -> None:
    folder = whole(tmp_path, 1)
    marker = folder / commit_marker.MARKER
    marker.write_text(marker.read_text().replace('"crc32"', '"crc3r"'))
    assert "unknown key 'crc3r'" in commit_marker.why_incomplete(folder)


def test_a_seal_that_is_a_pipe_or_a_device_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for number, target in enumerate((tmp_path / "pipe", Path("/dev/zero"))):
        marker = whole(tmp_path, number) / commit_marker.MARKER
        marker.unlink()
        marker.symlink_to(target)
        assert "committed.json can't be read (the path isn't a regular file" in commit_marker.why_incomplete(
            marker.parent
        )
        assert "it can't be read (the path isn't a regular file" in commit_marker.why_corrupt(marker.parent)

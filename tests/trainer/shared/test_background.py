"""Work beside the training is done whole, or says what went wrong."""

import threading

import pytest

from trainer.background import Background
from trainer.errors import TrainerError


def test_whoever_starts_work_goes_on_and_waits_for_it_later() -> None:
    may_end, done = threading.Event(), []
    background = Background()

    def work() -> None:
        assert may_end.wait(60)
        done.append(True)

    background.start(work)
    background.check()
    assert not done
    may_end.set()
    background.wait()
    assert done


def test_what_goes_wrong_is_raised_once_by_who_looks() -> None:
    def fail() -> None:
        failed.set()
        raise TrainerError("the disk is full")

    failed, background = threading.Event(), Background()
    background.start(fail)
    assert failed.wait(60)
    with pytest.raises(TrainerError, match="the disk is full"):
        background.wait()
    background.wait()

"""Work beside the training is done whole, or says what went wrong."""

import threading
import time
from collections.abc import Callable

import pytest

from trainer.checkpoints.background import Background
from trainer.vertex.errors import TrainerError


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


LOST, FULL, NAN = ConnectionError("a peer is gone"), TrainerError("the disk is full"), TrainerError("no number")


def test_after_an_error_of_the_block_the_work_is_done_all_the_same() -> None:
    done = []

    def work() -> None:
        time.sleep(0.2)
        done.append(True)

    with pytest.raises(ConnectionError):
        beside(work, LOST)
    assert done


@pytest.mark.parametrize(
    ("of_the_work", "of_the_block", "told"),
    [(FULL, LOST, FULL), (LOST, NAN, NAN), (LOST, LOST, LOST), (FULL, None, FULL), (LOST, None, LOST)],
)
def test_of_two_errors_the_one_that_can_be_cured_is_told(
    of_the_work: Exception, of_the_block: Exception | None, told: Exception
) -> None:
    def fail() -> None:
        raise of_the_work

    with pytest.raises(type(told), match=str(told)):
        beside(fail, of_the_block)


def beside(work: Callable[[], None], error: Exception | None) -> None:
    """A block that begins the work and ends, with an error or without."""
    with Background() as background:
        background.start(work)
        if error:
            raise error

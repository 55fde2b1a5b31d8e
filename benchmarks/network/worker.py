"""What the workers of a ring and those of reducers have in common: they sum vectors when told to, and are checked."""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
RANGE = 1000  # of the numbers in a vector: small, so that their sums are exact


def vector(rank: int, repetition: int, length: int) -> Vector:
    """Whole numbers that differ by rank and repetition, so that no sum can be an old or an incomplete one."""
    return ((np.arange(length) + 7 * rank + repetition) % RANGE).astype(np.float32)


def work(add: Callable[[Vector], None], rank: int, workers: int, length: int, repetitions: int) -> None:
    """So many sums by `add`, which is given a worker's vector and leaves the sum of all workers' vectors in its place.

    Three times in each repetition a worker prints a line: that it is ready, when it began and ended, and whether its
    sum is right. After the first two it waits for a line, so that nobody calculates while another's time is taken.
    """
    for repetition in range(repetitions):
        mine = vector(rank, repetition, length)
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.monotonic()  # one clock for all hosts, as all are one machine
        add(mine)
        print(json.dumps([began, time.monotonic()]), flush=True)
        sys.stdin.readline()
        right = sum(vector(other, repetition, length) for other in range(workers))
        print(json.dumps(bool(np.array_equal(mine, right))), flush=True)

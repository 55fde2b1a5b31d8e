"""Common parts of workers in a ring and with reducers: they all-reduce vectors on request, and check the result."""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def work(add: Callable[[Vector], None], rank: int, workers: int, length: int, repetitions: int) -> None:
    """Time all-reduces by `add`, which replaces a worker's vector by the sum of all workers' vectors.

    In each repetition a worker prints three lines: that it is ready, when it began and ended, and whether its result is
    right. After the first two it waits for a line, so that no worker calculates while another one is timed.
    """
    pattern = (np.arange(length) % 1000).astype(np.float32)  # small whole numbers, whose sums are exact
    for repetition in range(repetitions):
        # Only if each worker's vector of this repetition is added once, the powers of two make 2**workers - 1.
        mine = pattern + (2**rank + repetition)
        right = workers * (pattern + repetition) + (2**workers - 1)
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.monotonic()  # one clock for all hosts, as all are one machine
        add(mine)
        print(json.dumps([began, time.monotonic()]), flush=True)
        sys.stdin.readline()
        print(json.dumps(bool(np.array_equal(mine, right))), flush=True)

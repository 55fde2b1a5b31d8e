"""Common code of ring workers and workers with reducers, which all-reduce vectors on request and check the sums."""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def work(add: Callable[[Vector], None], rank: int, workers: int, length: int, repetitions: int) -> None:
    """Measure the time of `add`, which replaces a worker's vector with the sum of all workers' vectors.

    In each repetition, a worker prints three lines: "ready", the start and end time, and whether the sum is correct.
    After each of the first two lines, the worker waits for a line of input. Therefore no worker computes while a
    different worker's time is measured.
    """
    pattern = (np.arange(length) % 1000).astype(np.float32)  # small whole numbers, whose sums are exact
    for repetition in range(repetitions):
        # The powers of two add up to 2**workers - 1 only if each worker's vector is added exactly once.
        mine = pattern + (2**rank + repetition)
        right = workers * (pattern + repetition) + (2**workers - 1)
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.monotonic()  # all hosts share one clock, because they are on one machine
        add(mine)
        print(json.dumps([began, time.monotonic()]), flush=True)
        sys.stdin.readline()
        print(json.dumps(bool(np.array_equal(mine, right))), flush=True)

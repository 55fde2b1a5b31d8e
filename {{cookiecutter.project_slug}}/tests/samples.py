"""Provides samples of the example dataset for tests that need a batch."""

from trainer import data
from trainer.config import Config
from trainer.data import EXAMPLES, Batch

EXAMPLE = next(iter(EXAMPLES))
HELDOUT = EXAMPLES[EXAMPLE]()["heldout"]


def batch(count: int) -> Batch:
    """Return a batch of the first `count` held-out samples."""
    return data.collate(HELDOUT[:count], Config())

"""State of a run, which a checkpoint holds."""

from dataclasses import dataclass

import keras


@dataclass
class State:
    """State of a run, as a checkpoint holds it; `step` counts finished steps."""

    net: keras.Model
    optimizer: keras.Optimizer
    step: int = 0

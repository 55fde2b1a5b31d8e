"""Evaluates a run's checkpoints on one device, using the run's flags (python -m trainer.evaluator).

The evaluator in pool 3 runs this program. The program doesn't join the training cluster.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.cluster import program
from trainer.vertex.log import exit_code

if TYPE_CHECKING:
    from trainer.config import Job


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Run the evaluator. Raises TrainerError for errors that the user can fix."""
    program.prepare(environ, argv)
    from trainer.evaluator import follow  # imported late, because it imports TensorFlow

    follow.run(argv, environ, scorer)


def scorer(job: "Job") -> Callable[[Path], Mapping[str, float]]:
    """Return a function that evaluates a checkpoint on the held-out samples.

    If the machine has a GPU, the function uses it.

    Raises:
        TrainerError: if the dataset doesn't have a held-out shard. The returned function raises TrainerError if a
            checkpoint belongs to a different model.
    """
    from trainer import train
    from trainer.checkpoints import saver
    from trainer.cluster import devices
    from trainer.cluster.world import World
    from trainer.parallel.multi_worker_mirrored import MultiWorkerMirrored
    from trainer.parallel.strategy import Loop
    from trainer.samples.batches import Data
    from trainer.step.state import new_optimizer
    from trainer.step.totals import names

    devices.compute_in(job.config.precision, devices.set_up_gpus())
    data, strategy, alone = Data(job), MultiWorkerMirrored(), World()
    state = train.new_state(job.config, strategy, data.example, alone)
    loop = Loop(job.config, names(state.net, data.example), train.train_step, new_optimizer)
    spread = strategy.wrap(loop, state, alone)

    def score(folder: Path) -> Mapping[str, float]:
        saver.read_model(state.net, folder)
        return train.evaluate(spread, data, alone)

    return score


if __name__ == "__main__":
    program.run_to_end(partial(exit_code, run))

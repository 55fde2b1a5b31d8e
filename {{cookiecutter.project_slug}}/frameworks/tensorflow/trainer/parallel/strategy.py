"""The interface of a strategy, which decides how the model is spread over the machines."""

from typing import cast

from trainer import optional
from trainer.cluster.spec import Cluster, Node
from trainer.config import Config
from trainer.job import Job


class Strategy:
    """A choice of --strategy: a module of this folder whose STRATEGY is one. A deleted module is no choice any more."""

    def servers(self, config: Config, cluster: Cluster) -> tuple[Node, ...]:
        """Return the replicas of pool 2 that take part. Raises TrainerError where flags and pools do not fit."""
        raise NotImplementedError

    def reads_data(self, cluster: Cluster) -> bool:
        """Whether this replica reads the data set."""
        return True

    def take_part(self, job: Job) -> None:
        """Do this replica's part of the run, when all that take part are here."""
        raise NotImplementedError


def load(name: str) -> Strategy:
    """Return a strategy by its name. Raises TrainerError where the project has deleted it."""
    return cast(Strategy, optional.load(f"parallel.{name}", f"--strategy {name}").STRATEGY)

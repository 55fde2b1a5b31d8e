"""State of a run, which a checkpoint holds, and its optimizer: of Keras, for gradients that are all-reduced already."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from trainer.config import Config
from trainer.vertex.errors import TrainerError

SEED = "seed_generator_state"  # Keras' name of the variable by which a layer draws random numbers
# Ours override these of Keras' optimizers; under another name gradients would be all-reduced twice, without a word.
PRIVATE = ("_all_reduce_sum_gradients", "_apply_weight_decay", "_backend_update_step")


@dataclass
class State:
    """State of a run, as a checkpoint holds it; `step` counts finished steps."""

    net: keras.Model
    optimizer: keras.Optimizer
    step: int = 0
    skipped: Any = field(default_factory=lambda: tf.Variable(0, trainable=False, dtype=tf.int64))
    """Steps since the start whose gradient was no number; no checkpoint holds it."""
    fetch: Callable[[], None] = lambda: None
    """Bring the state up to date, where others hold it while it is trained."""

    def seed(self, seed: int) -> None:
        """Choose what dropout draws in this step: each device has its own, and a resumed run draws the same again."""
        context = tf.distribute.get_replica_context()
        states = [variable for variable in self.net.non_trainable_variables if variable.name == SEED] if context else []
        if not states:  # or a worker of parameter servers, whose net draws by itself
            return
        shape = [context.num_replicas_in_sync, len(states), 2]
        key = tf.stack([seed, tf.cast(self.optimizer.iterations, tf.int64)])
        seeds = tf.random.stateless_uniform(shape, key, None, None, tf.int64)
        for i, state in enumerate(states):
            state.assign(seeds[context.replica_id_in_sync_group, i])

    def update(self, gradients: Any, norm: tf.Tensor, limit: int) -> tf.Tensor:
        """Let the optimizer step if the norm of the gradients is a number; returns whether it does, without a wait.

        With more than `limit` steps skipped the state stays as it is, so that `replay` finds what the step found.
        """
        is_taken = tf.math.is_finite(norm) & (self.skipped <= limit)
        context, variables = tf.distribute.get_replica_context(), self.net.trainable_variables
        if context is None:  # a worker of parameter servers
            self._choose(is_taken, lambda: self.optimizer.apply(gradients, variables))
            return is_taken

        def merged(strategy: tf.distribute.Strategy, of_each: Any, gradients: Any) -> None:
            apply = partial(self.optimizer.apply, trainable_variables=variables)
            replicas = partial(strategy.extended.call_for_each_replica, apply, (gradients,))
            self._choose(strategy.experimental_local_results(of_each)[0], replicas)

        # The optimizer merges the devices' calls, too, and may not do so in a branch of one device.
        context.merge_call(merged, (is_taken, gradients))
        return is_taken

    def _choose(self, is_taken: tf.Tensor, apply: Callable[[], None]) -> None:
        def skip() -> None:
            self.skipped.assign_add(1)

        tf.cond(is_taken, apply, skip)


def require_keras() -> None:
    """Raises TrainerError where Keras is not as our optimizers want it."""
    if missing := [name for name in PRIVATE if not hasattr(keras.optimizers.AdamW, name)]:
        raise TrainerError(
            f"Keras {keras.__version__} has no {missing[0]}, which trainer/step/state.py overrides; install"
            " the version of requirements/, or rewrite the optimizers there"
        )


class AdamW(keras.optimizers.AdamW):  # type: ignore[misc] # Keras has no types
    """AdamW for gradients that are all-reduced already.

    Keras 3 all-reduces them itself, and has no switch for it. But clipping needs the global norm of the all-reduced
    gradients, and a second all-reduce would double the traffic.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


def new_optimizer(
    config: Config, variables: list[Any], kind: type[keras.optimizers.AdamW] = AdamW
) -> keras.optimizers.AdamW:
    """AdamW, which leaves biases and other vectors undecayed."""
    optimizer = kind(config.learning_rate, weight_decay=config.weight_decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay([v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer

"""Defines the training state that checkpoints store, and a Keras optimizer for all-reduced gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from trainer.config import Config
from trainer.vertex.errors import TrainerError

SEED = "seed_generator_state"  # Keras's name for the variable with the random state of a layer
# AdamW and PlacedAdamW override these methods of Keras. If Keras renames one, gradients are silently reduced twice.
PRIVATE = ("_all_reduce_sum_gradients", "_apply_weight_decay", "_backend_update_step")


@dataclass
class State:
    """The training state that checkpoints store. `step` is the number of finished steps."""

    net: keras.Model
    optimizer: keras.Optimizer
    step: int = 0
    skipped: Any = field(default_factory=lambda: tf.Variable(0, trainable=False, dtype=tf.int64))
    """The number of steps that this run skipped because of NaN or infinite gradients. Checkpoints don't store this
    number."""
    fetch: Callable[[], None] = lambda: None
    """A function that copies variables from parameter servers to this state.

    If there are no parameter servers, the function does nothing.
    """

    def seed(self, seed: int) -> None:
        """Set this step's random state for layers such as dropout.

        Each device draws different random numbers. A resumed run draws the same random numbers as an uninterrupted run.
        """
        context = tf.distribute.get_replica_context()
        states = [variable for variable in self.net.non_trainable_variables if variable.name == SEED] if context else []
        if not states:  # none, or a worker of parameter servers, whose model draws by itself
            return
        shape = [context.num_replicas_in_sync, len(states), 2]
        key = tf.stack([seed, tf.cast(self.optimizer.iterations, tf.int64)])
        seeds = tf.random.stateless_uniform(shape, key, None, None, tf.int64)
        for i, state in enumerate(states):
            state.assign(seeds[context.replica_id_in_sync_group, i])

    def update(self, gradients: Any, norm: tf.Tensor, limit: int) -> tf.Tensor:
        """Run the optimizer step if the gradient norm is finite.

        Without waiting for the device, returns a boolean tensor that indicates whether the step runs.

        After more than `limit` skipped steps, the state no longer changes, so `nonfinite.error` can repeat the failed
        step.
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

        # The optimizer also merges calls from all devices, but it must not merge them in a branch of a single device.
        context.merge_call(merged, (is_taken, gradients))
        return is_taken

    def _choose(self, is_taken: tf.Tensor, apply: Callable[[], None]) -> None:
        def skip() -> None:
            self.skipped.assign_add(1)

        tf.cond(is_taken, apply, skip)


def require_keras() -> None:
    """Check that Keras has the methods that this project's optimizers override.

    Raises TrainerError if a method is missing.
    """
    if missing := [name for name in PRIVATE if not hasattr(keras.optimizers.AdamW, name)]:
        raise TrainerError(
            f"Keras {keras.__version__} doesn't have {missing[0]}, which trainer/step/state.py overrides; install"
            " the Keras version in requirements/, or rewrite the optimizers in trainer/step/state.py"
        )


class AdamW(keras.optimizers.AdamW):  # type: ignore[misc] # Keras has no types
    """An AdamW optimizer for gradients that are already all-reduced.

    Keras 3 always all-reduces gradients itself. However, clipping requires gradients that are already all-reduced,
    and a second all-reduce would double the traffic.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


def new_optimizer(
    config: Config, variables: list[Any], kind: type[keras.optimizers.AdamW] = AdamW
) -> keras.optimizers.AdamW:
    """Return an AdamW optimizer that doesn't apply weight decay to biases and other vectors."""
    optimizer = kind(config.learning_rate, weight_decay=config.weight_decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay([v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer

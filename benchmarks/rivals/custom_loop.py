"""Rival of the trainer: the custom loop of TensorFlow's guide to multi-worker training, with the project's model.

Source: tensorflow.org/tutorials/distribute/multi_worker_with_ctl, with Keras 3.
"""

import json
import os
import sys

cluster = json.loads(os.environ["TF_CONFIG"])
cluster["cluster"].pop("ps", None)
os.environ |= {"TF_CONFIG": json.dumps(cluster), "TF_ENABLE_ONEDNN_OPTS": "0"}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from work import Reports, work  # noqa: E402

from trainer import model  # noqa: E402
from trainer.config import learning_rate  # noqa: E402


def main(argv: list[str]) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = cluster["task"]
    rank = 0 if task["type"] == "chief" else 1 + task["index"]
    with work(argv, rank, strategy.num_replicas_in_sync) as (config, example, batches):
        with strategy.scope():
            net = model.build(config, example)
            optimizer = keras.optimizers.AdamW(
                config.learning_rate, weight_decay=config.weight_decay, global_clipnorm=config.clip
            )
            optimizer.build(net.trainable_variables)

        def one(arrays: tuple[tf.Tensor, ...]) -> tf.Tensor:
            batch = type(example)(*arrays)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model.losses(net(batch.inputs, training=True), batch)) / config.global_batch
            # Keras 3 adds the gradients of all replicas up.
            optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
            return loss

        @tf.function
        def step(arrays: tuple[tf.Tensor, ...]) -> tf.Tensor:
            return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(one, args=(arrays,)), axis=None)

        reports = Reports(config, is_chief=rank == 0)
        for number, arrays in enumerate(batches):
            optimizer.learning_rate.assign(learning_rate(config, number))
            loss = step(tuple(map(tf.constant, arrays)))  # this process has one device, whose part it is
            reports.step(loss.numpy)


if __name__ == "__main__":
    main(sys.argv[1:])

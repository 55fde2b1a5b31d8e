"""Train a model with TensorFlow's MultiWorkerMirroredStrategy."""

import argparse
import json
import os
import sys

import keras
import tensorflow as tf

flags = argparse.ArgumentParser()
flags.add_argument("--global-batch", type=int, default=96)
flags.add_argument("--steps", type=int, default=2000)
flags.add_argument("--log-every", type=int, default=200)
args = flags.parse_args()
folder = os.environ["AIP_CHECKPOINT_DIR"].replace("gs:/", os.environ.get("GCS_MOUNT", "/gcs"))

strategy = tf.distribute.MultiWorkerMirroredStrategy()
is_chief, size = strategy.cluster_resolver.task_type != "worker", strategy.num_replicas_in_sync
keras.utils.set_random_seed(0)
with strategy.scope():
    net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(1e-2)
    optimizer.build(net.trainable_variables)
checkpoints = tf.train.CheckpointManager(tf.train.Checkpoint(net=net, optimizer=optimizer), folder, max_to_keep=2)
checkpoints.restore_or_initialize()


def replica_step() -> tf.Tensor:
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    seed = tf.stack([tf.cast(optimizer.iterations, tf.int32), replica])  # each replica draws its own samples
    rows = tf.random.stateless_normal((args.global_batch // size, 8), seed)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(rows)[:, 0] - tf.reduce_sum(tf.sin(rows), 1)) ** 2) / size
    optimizer.apply(tape.gradient(loss, net.trainable_variables))  # adds the gradients of all replicas
    return loss


@tf.function  # type: ignore[untyped-decorator]
def train_step() -> tf.Tensor:
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step), axis=None)


try:
    while (step := int(optimizer.iterations.numpy()) + 1) <= args.steps:
        loss = float(train_step())
        if is_chief and step % args.log_every == 0:
            message = f"step {step}/{args.steps}  loss {loss:.4f}"
            print(json.dumps({"message": message, "step": step, "steps": args.steps}), flush=True)
            checkpoints.save(step)
except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError) as error:
    print(f"a peer was lost: {error}", file=sys.stderr, flush=True)
    os._exit(75)  # sys.exit can wait for the lost peer

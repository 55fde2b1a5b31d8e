"""Rival of the trainer: tf_keras `fit` with MultiWorkerMirroredStrategy, a model of the same shape and the same images.

This program imports only the images from the project, because other imports would load Keras 3. Therefore this program
defines its own flags.
"""

import argparse
import json
import os
import time

config = json.loads(os.environ["TF_CONFIG"])
config["cluster"].pop("ps", None)
os.environ |= {"TF_CONFIG": json.dumps(config), "TF_USE_LEGACY_KERAS": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402
import tf_keras as keras  # noqa: E402

from trainer.data import digits  # noqa: E402

SIZES = {"tiny": (64, 4, 4), "small": (384, 12, 6), "base": (768, 12, 12)}  # width, depth, heads


class Position(keras.layers.Layer):
    def build(self, shape: tuple[int, ...]) -> None:
        self.position = self.add_weight("position", shape[1:], initializer="random_normal")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.position


class Timer(keras.callbacks.Callback):
    """Reports the seconds per step every `every` steps, like the trainer."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every

    def on_train_begin(self, logs: object = None) -> None:
        self.steps, self.since = 0, time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps += 1
        if self.steps % self.every == 0 and config["task"]["type"] == "chief":
            print(json.dumps({"train/step_seconds": (time.perf_counter() - self.since) / self.every}), flush=True)
            self.since = time.perf_counter()


def build(width: int, depth: int, heads: int) -> keras.Model:
    images = keras.Input((8, 8, 1))
    tiles = tf.keras.layers.Reshape((4, 2, 4, 2))(images)
    x = keras.layers.Reshape((16, 4))(keras.layers.Permute((1, 3, 2, 4))(tiles))
    x = Position()(keras.layers.Dense(width)(x))
    for _ in range(depth):
        y = keras.layers.LayerNormalization(epsilon=1e-5)(x)
        x = x + keras.layers.MultiHeadAttention(heads, width // heads)(y, y)
        y = keras.layers.LayerNormalization(epsilon=1e-5)(x)
        x = x + keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(y))
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization(epsilon=1e-5)(x))
    return keras.Model(images, keras.layers.Dense(10)(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--steps", "--global-batch", "--log-every", "--warmup"):
        parser.add_argument(name, type=int)
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--profile", help="first and last step to trace into the folder trace, such as 20,25")
    flags, _ = parser.parse_known_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    samples = digits()["train"]
    images = tf.constant([sample.image for sample in samples], tf.float32) / 255
    labels = tf.constant([sample.label for sample in samples])
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2000).repeat()
    dataset = dataset.batch(flags.global_batch).prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    decay = {"decay_steps": flags.steps - flags.warmup, "warmup_target": 2e-3, "warmup_steps": flags.warmup}
    with strategy.scope():
        net = build(*SIZES[flags.size])
        schedule = keras.optimizers.schedules.CosineDecay(0.0, **decay)
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [Timer(flags.log_every)]
    if flags.profile and config["task"]["type"] == "chief":
        callbacks.append(keras.callbacks.TensorBoard("trace", write_graph=False, profile_batch=flags.profile))
    net.fit(dataset.with_options(options), epochs=1, steps_per_epoch=flags.steps, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main()

"""TensorFlow and the local Vertex: its `gs://` in a replica, which needs no setting, and uploads of its event files."""

from collections.abc import Iterator

import pytest

from launcher.tests.vertex import Service, custom_job, script, service
from tests.fidelity import tensorboards
from tests.fidelity.usages import Usage, of_module

pytestmark = pytest.mark.proof

UPLOADS = [usage for usage in of_module(tensorboards) if usage.needs == "tensorflow"]


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1") as running:
        yield running


def ran(vertex: Service, code: str) -> list[str]:
    """What a replica prints that runs this code; its job succeeds."""
    name = vertex.create(custom_job(*script(f"import tensorflow as tf\n{code}"), name="gs"))
    vertex.wait(name, "SUCCEEDED", seconds=300)
    return [line for line in vertex.log(name) if "told: " in line]


def test_files_are_written_read_listed_and_removed(vertex: Service) -> None:
    code = """
with tf.io.gfile.GFile("gs://b/notes/one.txt", "w") as file:
    file.write("over gs")
print("told:", tf.io.gfile.GFile("gs://b/notes/one.txt").read(), tf.io.gfile.listdir("gs://b/notes"))
tf.io.gfile.copy("gs://b/notes/one.txt", "gs://b/notes/two.txt")
tf.io.gfile.remove("gs://b/notes/one.txt")
print("told:", tf.io.gfile.glob("gs://b/notes/*"))
"""
    assert ran(vertex, code) == [
        "workerpool0-0: told: over gs ['one.txt']",
        "workerpool0-0: told: ['gs://b/notes/two.txt']",
    ]
    assert (vertex.state_dir / "gcs/b/notes/two.txt").read_text() == "over gs"


def test_summaries_are_event_files_of_the_bucket(vertex: Service) -> None:
    code = """
with tf.summary.create_file_writer("gs://b/logs").as_default():
    tf.summary.scalar("loss", 0.5, step=1)
for file in tf.io.gfile.glob("gs://b/logs/*"):
    for event in tf.compat.v1.train.summary_iterator(file):
        for value in event.summary.value:
            print("told:", event.step, value.tag, float(tf.make_ndarray(value.tensor)))
"""
    assert ran(vertex, code) == ["workerpool0-0: told: 1 loss 0.5"]
    assert [*(vertex.state_dir / "gcs/b/logs").glob("events.out.tfevents.*")]


def test_a_model_is_exported_to_a_bucket_and_loaded_from_it(vertex: Service) -> None:
    code = """
import keras
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.export("gs://b/model", verbose=False)
loaded = tf.saved_model.load("gs://b/model")
print("told:", loaded.serve(tf.constant([[1.0, 2.0]])).numpy().tolist())
"""
    assert ran(vertex, code) == ["workerpool0-0: told: [[3.0]]"]
    assert (vertex.state_dir / "gcs/b/model/saved_model.pb").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what TensorBoard brings with it
@pytest.mark.parametrize("usage", UPLOADS, ids=lambda usage: usage.id)
def test_event_files_are_uploaded_as_published(vertex: Service, usage: Usage) -> None:
    assert usage.verdict(vertex) == "works"

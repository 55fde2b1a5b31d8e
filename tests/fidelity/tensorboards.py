"""TensorBoards."""

import threading

import pytest
from google.api_core.exceptions import NotFound
from google.cloud import aiplatform
from google.cloud.aiplatform_v1 import TensorboardServiceClient

from launcher.tests.running import eventually
from launcher.tests.sdk import gapic, init
from launcher.tests.vertex import BY_ID, PARENT, Service, script
from tests.fidelity.usages import ACCOUNT, DOCS, NOTEBOOKS, SAMPLES, SYSTEM, pool, usage

TRACKING = f"{SAMPLES}/experiment_tracking"


def board(name: str) -> aiplatform.Tensorboard:
    return aiplatform.Tensorboard.create(display_name=name)


def series(vertex: Service, name: str) -> aiplatform.TensorboardTimeSeries:
    """Create a curve in a run of an experiment of a TensorBoard of its own."""
    tensorboard = board(name)
    experiment = aiplatform.TensorboardExperiment.create("experiment", tensorboard_name=tensorboard.resource_name)
    run = aiplatform.TensorboardRun.create("run", tensorboard_experiment_name=experiment.resource_name)
    return aiplatform.TensorboardTimeSeries.create(display_name="loss", tensorboard_run_name=run.resource_name)


def write_events(vertex: Service, name: str) -> str:
    """Write a run of TensorBoard's own event files and return its folder."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = vertex.folder / name
    writer = EventFileWriter(str(folder / "train"))
    for step in range(3):
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=1 / (step + 1))])
        writer.add_event(Event(step=step, wall_time=1.0 + step, summary=summary))
    writer.close()
    return str(folder)


@usage(f"{SAMPLES}/create_tensorboard_sample.py")
def created(vertex: Service) -> None:
    """Create a TensorBoard, and use it for later experiments."""
    tensorboard = board("created")
    aiplatform.init(experiment_tensorboard=tensorboard)
    assert tensorboard.resource_name.startswith(f"{PARENT}/tensorboards/")
    assert aiplatform.Tensorboard(tensorboard.name).display_name == "created"


@usage(f"{SAMPLES}/delete_tensorboard_instance_sample.py")
def deleted(vertex: Service) -> None:
    """Delete a TensorBoard."""
    tensorboard = board("deleted")
    aiplatform.Tensorboard(tensorboard.name).delete()
    with pytest.raises(NotFound):
        aiplatform.Tensorboard(tensorboard.name)


@usage(f"{NOTEBOOKS}/experiments/delete_outdated_tensorboard_experiments.ipynb")
def experiments_listed(vertex: Service) -> None:
    """List the experiments of a TensorBoard, and delete old experiments."""
    tensorboard = board("old")
    aiplatform.TensorboardExperiment.create("old", tensorboard_name=tensorboard.resource_name)
    for experiment in aiplatform.TensorboardExperiment.list(tensorboard_name=tensorboard.resource_name):
        assert experiment.create_time
        experiment.delete()
    assert aiplatform.TensorboardExperiment.list(tensorboard_name=tensorboard.resource_name) == []


@usage(f"{NOTEBOOKS}/experiments/delete_outdated_tensorboard_experiments.ipynb")
def listed(vertex: Service) -> None:
    """List TensorBoards by display name."""
    tensorboard = board("to list")
    found = aiplatform.Tensorboard.list(filter='display_name="to list"')
    assert [one.name for one in found] == [tensorboard.name]


@usage(f"{SYSTEM}/test_tensorboard.py")
def whole_tree(vertex: Service) -> None:
    """Create an experiment, a run and a curve, and list them."""
    curve = series(vertex, "tree")
    run = curve.resource_name.rpartition("/timeSeries/")[0]
    assert [one.display_name for one in aiplatform.TensorboardTimeSeries.list(tensorboard_run_name=run)] == ["loss"]
    experiment = run.rpartition("/runs/")[0]
    assert [one.name for one in aiplatform.TensorboardRun.list(tensorboard_experiment_name=experiment)] == ["run"]


@usage(f"{SYSTEM}/test_tensorboard.py")
def updated(vertex: Service) -> None:
    """Change a TensorBoard's display name, description and labels."""
    tensorboard = board("before")
    tensorboard.update(display_name="after", description="changed", labels={"team": "vision"})
    changed = aiplatform.Tensorboard(tensorboard.name)
    assert (changed.display_name, changed.labels) == ("after", {"team": "vision"})


@usage(f"{SYSTEM}/test_tensorboard.py")
def experiment_updated(vertex: Service) -> None:
    """Change the display name of a TensorBoard's experiment."""
    client, tensorboard = gapic(TensorboardServiceClient, vertex), board("renamed")
    experiment = aiplatform.TensorboardExperiment.create("e", tensorboard_name=tensorboard.resource_name)
    change = {"name": experiment.resource_name, "display_name": "renamed"}
    client.update_tensorboard_experiment(tensorboard_experiment=change, update_mask={"paths": ["display_name"]})
    assert aiplatform.TensorboardExperiment(experiment.resource_name).display_name == "renamed"


@usage(f"{SYSTEM}/test_tensorboard.py")
def written_and_read(vertex: Service) -> None:
    """Write the points of a curve, and read them."""
    client, curve = gapic(TensorboardServiceClient, vertex), series(vertex, "points")
    run, _, id = curve.resource_name.rpartition("/timeSeries/")
    points = [{"scalar": {"value": 0.5**step}, "step": step, "wall_time": "2026-01-01T00:00:00Z"} for step in range(3)]
    data = {"tensorboard_time_series_id": id, "value_type": "SCALAR", "values": points}
    client.write_tensorboard_run_data(tensorboard_run=run, time_series_data=[data])
    read = client.read_tensorboard_time_series_data(tensorboard_time_series=curve.resource_name)
    assert [point.scalar.value for point in read.time_series_data.values] == [1, 0.5, 0.25]


@usage(f"{DOCS}: BatchReadTensorboardTimeSeriesData")
def read_in_a_batch(vertex: Service) -> None:
    """Read several curves in one request."""
    client, curve = gapic(TensorboardServiceClient, vertex), series(vertex, "batch")
    tensorboard = curve.resource_name.partition("/experiments/")[0]
    request = {"tensorboard": tensorboard, "time_series": [curve.resource_name]}
    assert len(client.batch_read_tensorboard_time_series_data(request=request).time_series_data) == 1


@usage(f"{TRACKING}/upload_tensorboard_log_one_time_sample.py", needs="tensorflow")
def uploaded_once(vertex: Service) -> None:
    """Upload a folder of event files once."""
    tensorboard = board("once")
    folder = write_events(vertex, "once")
    aiplatform.upload_tb_log(
        tensorboard_id=tensorboard.name, tensorboard_experiment_name="once", logdir=folder, run_name_prefix="p-"
    )
    experiment = f"{tensorboard.resource_name}/experiments/once"
    assert len(aiplatform.TensorboardRun.list(tensorboard_experiment_name=experiment)) == 1


@usage(f"{TRACKING}/upload_tensorboard_log_to_experiment_sample.py", needs="tensorflow")
def uploaded_to_an_experiment(vertex: Service) -> None:
    """Upload a folder of event files to the current experiment."""
    init(vertex, experiment="uploaded")
    aiplatform.upload_tb_log(tensorboard_experiment_name="uploaded", logdir=write_events(vertex, "uploaded"))
    assert aiplatform.Experiment("uploaded").get_backing_tensorboard_resource()


@usage(f"{TRACKING}/upload_tensorboard_log_continuously_sample.py", needs="tensorflow")
def uploaded_continuously(vertex: Service) -> None:
    """Upload a folder while a program writes to it."""
    tensorboard, others = board("continuous"), {*threading.enumerate()}
    aiplatform.start_upload_tb_log(
        tensorboard_id=tensorboard.name, tensorboard_experiment_name="continuous", logdir=str(vertex.folder / "events")
    )
    (uploader,) = {*threading.enumerate()} - others
    write_events(vertex, "events")
    assert eventually(lambda: vertex.get(f"{tensorboard.resource_name}:readSize")["storageSizeByte"] != "0")
    aiplatform.end_upload_tb_log()
    uploader.join(60)  # it looks for new events every five seconds, and would do so once more after the test
    assert aiplatform.TensorboardExperiment.list(tensorboard_name=tensorboard.resource_name)


@usage(f"{NOTEBOOKS}/tensorboard/tensorboard_custom_training_with_custom_container.ipynb")
def of_a_job(vertex: Service) -> None:
    """Use a TensorBoard in a job, in which the replicas get its name and log folder."""
    tensorboard = board("job")
    show = "import os; print(os.environ['AIP_TENSORBOARD_RESOURCE_NAME'], os.environ['AIP_TENSORBOARD_LOG_DIR'])"
    job = aiplatform.CustomJob("board", worker_pool_specs=[pool(*script(show))], base_output_dir="gs://b/events")
    job.run(tensorboard=tensorboard.resource_name, service_account=ACCOUNT)
    assert vertex.log(job.resource_name) == [
        f"workerpool0-0: {BY_ID}/tensorboards/{tensorboard.name} gs://b/events/logs/"
    ]

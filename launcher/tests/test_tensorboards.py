"""What Google's Python client writes to TensorBoards and reads from them, as it is, against the local Vertex."""

import base64
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest
from google.cloud import aiplatform
from google.cloud.aiplatform.metadata import metadata as sdk_metadata
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from launcher.tests.sdk import init, prepare
from launcher.tests.vertex import PARENT, Service, custom_job, script, service
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.experiments import Curves

ACCOUNT = "trainer@p.iam.gserviceaccount.com"


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1") as running:
        yield running


@pytest.fixture(autouse=True)
def _client(vertex: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prepare(vertex, monkeypatch)
    yield
    sdk_metadata._experiment_tracker.reset()


@pytest.fixture
def run() -> aiplatform.TensorboardRun:
    """A run of a TensorBoard of its own, with a time series called loss."""
    board = aiplatform.Tensorboard.create(display_name="board")
    experiment = aiplatform.TensorboardExperiment.create("e", board.resource_name)
    created = aiplatform.TensorboardRun.create("r", experiment.resource_name)
    created.create_tensorboard_time_series("loss")
    return created


def losses(run: aiplatform.TensorboardRun) -> list[tuple[int, float]]:
    return [(point.step, point.scalar.value) for point in run.read_time_series_data()["loss"].values]


def series(run: aiplatform.TensorboardRun, name: str = "loss") -> str:
    return f"{run.resource_name}/timeSeries/{run._get_time_series_display_name_to_id_mapping()[name]}"


def test_what_is_written_to_a_run_is_read_by_step(run: aiplatform.TensorboardRun) -> None:
    for step, value in ((2, 0.5), (0, 4.0), (1, 2.0), (2, 0.0)):  # a later write to a step replaces an earlier one
        run.write_tensorboard_scalar_data({"loss": value}, step=step)
    assert losses(run) == [(0, 4.0), (1, 2.0), (2, 0.0)]


def test_metrics_over_time_belong_to_a_run_of_an_experiment(vertex: Service) -> None:
    init(vertex, experiment="over-time")
    (board,) = aiplatform.Tensorboard.list(filter="is_default=true")
    run = aiplatform.start_run("r")
    for loss in (2.0, 1.0):
        aiplatform.log_time_series_metrics({"loss": loss, "accuracy": 1 - loss / 4})
    aiplatform.log_time_series_metrics({"loss": 0.5}, step=7)
    # As get_time_series_data_frame and get_experiment_df read; they need pandas.
    assert losses(aiplatform.TensorboardRun("r", board.name, "over-time")) == [(1, 2.0), (2, 1.0), (7, 0.5)]
    assert run._get_latest_time_series_metric_columns() == {"loss": 0.5, "accuracy": 0.75}


def test_an_update_of_a_tensorboard_is_an_operation() -> None:
    board = aiplatform.Tensorboard.create(display_name="before")
    board.update(display_name="after", labels={"team": "vision"})
    updated = aiplatform.Tensorboard(board.resource_name)
    assert (updated.display_name, updated.labels) == ("after", {"team": "vision"})


def test_points_are_private_files_that_outlive_the_service_and_go_with_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path) as first:
        prepare(first, monkeypatch)
        board = aiplatform.Tensorboard.create(display_name="board").resource_name
        experiment = aiplatform.TensorboardExperiment.create("e", board).resource_name
        run = aiplatform.TensorboardRun.create("r", experiment)
        run.create_tensorboard_time_series("loss")
        run.write_tensorboard_scalar_data({"loss": 1.5}, step=1)
    (file,) = tmp_path.rglob("*.jsonl")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with file.open("a") as cut:
        cut.write('\n{"step": "2", "sca')  # as a crash leaves it
    with service(tmp_path) as second:
        prepare(second, monkeypatch)
        run = aiplatform.TensorboardRun(run.resource_name)
        run.write_tensorboard_scalar_data({"loss": 0.5}, step=3)
        assert losses(run) == [(1, 1.5), (3, 0.5)]
        assert second.get(f"{board}:readSize") == {"storageSizeByte": str(file.stat().st_size)}
        run.delete()
    assert not file.exists()


def test_runs_and_time_series_are_created_and_written_many_at_once(vertex: Service) -> None:
    board = aiplatform.Tensorboard.create(display_name="board")
    experiment = aiplatform.TensorboardExperiment.create("e", board.resource_name).resource_name
    client, runs = board.api_client, [f"{experiment}/runs/{name}" for name in "ab"]
    wanted: list[Any] = [
        {"parent": experiment, "tensorboard_run": {"display_name": name}, "tensorboard_run_id": name} for name in "ab"
    ]
    created = client.batch_create_tensorboard_runs(parent=experiment, requests=wanted).tensorboard_runs
    assert [run.name for run in created] == runs
    wanted = [
        {"parent": run, "tensorboard_time_series": {"display_name": "loss", "value_type": "SCALAR"}} for run in runs
    ]
    made = client.batch_create_tensorboard_time_series(parent=experiment, requests=wanted).tensorboard_time_series
    writes: list[Any] = [
        {
            "tensorboard_run": run,
            "time_series_data": [
                {
                    "tensorboard_time_series_id": one.name.rpartition("/")[2],
                    "value_type": "SCALAR",
                    "values": [{"step": step, "scalar": {"value": step}} for step in range(2500)],
                }
            ],
        }
        for run, one in zip(runs, made, strict=True)
    ]
    for write in writes:
        client.write_tensorboard_experiment_data(tensorboard_experiment=experiment, write_run_data_requests=[write])
    assert vertex.get(made[0].name)["metadata"]["maxStep"] == "2499"

    # Of many points, `batchRead` chooses a thousand, and `read` what it is asked for.
    (data,) = client.batch_read_tensorboard_time_series_data(
        request={"tensorboard": board.resource_name, "time_series": [made[1].name]}
    ).time_series_data
    assert (len(data.values), data.values[-1].step) == (1000, 2499)
    asked = {"tensorboard_time_series": made[0].name, "max_data_points": 10, "filter": "step < 100"}
    read = client.read_tensorboard_time_series_data(request=asked).time_series_data.values
    assert [point.step for point in read] == [*range(9, 100, 10)]
    pages = client.export_tensorboard_time_series_data(request={"tensorboard_time_series": made[0].name})
    assert [point.scalar.value for point in pages] == [*range(2500)]


def test_a_blob_is_an_object_whose_id_is_written(vertex: Service, run: aiplatform.TensorboardRun) -> None:
    board = run.resource_name.partition("/experiments/")[0]
    folder = vertex.state_dir / "gcs" / vertex.get(board)["blobStoragePathPrefix"]
    folder.mkdir(parents=True)
    (folder / "one").write_bytes(b"picture")
    pictures = run.create_tensorboard_time_series("pictures", value_type="BLOB_SEQUENCE").resource_name
    data = {"tensorboardTimeSeriesId": pictures.rpartition("/")[2], "valueType": "BLOB_SEQUENCE"}
    written = {"timeSeriesData": [data | {"values": [{"step": 1, "blobs": {"values": [{"id": "one"}]}}]}]}
    assert vertex.call("POST", f"/v1/{run.resource_name}:write", written) == (200, {})
    (point,) = run.read_time_series_data()["pictures"].values
    assert [blob.id for blob in point.blobs.values] == ["one"]
    blob = {"id": "one", "data": base64.b64encode(b"picture").decode()}
    assert vertex.get(f"{pictures}:readBlobData?blobIds=one") == {"blobs": [blob]}
    assert vertex.call("GET", f"/v1/{pictures}:readBlobData?blobIds=two")[0] == 404


def test_a_run_has_no_two_time_series_of_one_name(run: aiplatform.TensorboardRun) -> None:
    with pytest.raises(BadRequest, match='displayName: "loss" already exists'):
        aiplatform.TensorboardTimeSeries.create("loss", tensorboard_run_name=run.resource_name)


LOSS: Any = {"valueType": "SCALAR", "values": [{"step": 1, "scalar": {"value": 1.0}}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"valueType": "TENSOR"}, "timeSeriesData[1].valueType: doesn't match the time series; use SCALAR"),
        ({"values": [{"step": 1}]}, "timeSeriesData[1].values[0]: has no scalar; add it"),
        ({"values": [{"stp": 1}]}, 'no field named "stp"'),
        ({"values": LOSS["values"] * 5000}, "timeSeriesData: has 5001 points; send at most 5000 in one request"),
        ({"tensorboardTimeSeriesId": "x"}, "timeSeries/x does not exist"),
    ],
)
def test_a_write_that_does_not_fit_is_refused_whole(
    vertex: Service, run: aiplatform.TensorboardRun, change: Any, message: str
) -> None:
    data = LOSS | {"tensorboardTimeSeriesId": series(run).rpartition("/")[2]}
    write = {"tensorboardRun": run.resource_name, "timeSeriesData": [data, data | change]}
    experiment = run.resource_name.partition("/runs/")[0]
    for name, body in ((run.resource_name, write), (experiment, {"writeRunDataRequests": [write]})):
        status, refused = vertex.call("POST", f"/v1/{name}:write", body)
        assert status in (400, 404)
        assert message in refused["error"]["message"]
    assert losses(run) == []


@pytest.mark.parametrize(
    ("method", "address", "body", "message"),
    [
        ("GET", "{series}:read?maxDataPoints=20000", None, 'maxDataPoints: "20000" isn\'t a valid number'),
        ("GET", "{series}:read?filter=loss>1", None, '"loss" isn\'t a field'),
        ("GET", "{board}:batchRead?timeSeries=elsewhere", None, "timeSeries: elsewhere isn't in projects/"),
        ("POST", "{run}/timeSeries", {"displayName": "x"}, "valueType: is missing; use one of SCALAR, "),
        ("POST", "{experiment}/runs:batchCreate", {"requests": [{"parent": "x"}]}, "requests[0].parent: isn't in "),
        ("POST", "{experiment}:write", {"writeRunDataRequests": [{}]}, "[0].tensorboardRun: isn't in "),
    ],
)
def test_a_request_that_cannot_be_served_is_one_sentence(
    vertex: Service, run: aiplatform.TensorboardRun, method: str, address: str, body: Any, message: str
) -> None:
    experiment = run.resource_name.partition("/runs/")[0]
    names = {"board": experiment.partition("/experiments/")[0], "experiment": experiment, "run": run.resource_name}
    status, refused = vertex.call(method, f"/v1/{address.format(series=series(run), **names)}", body)
    assert (status, message in refused["error"]["message"]) == (400, True), refused


WRITE_CURVES = """
import os
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
folder = os.environ["AIP_TENSORBOARD_LOG_DIR"].replace("gs://", os.environ["BUCKETS"])
for name, value in (("", 3.0), ("train/first", 0.0)):
    writer = EventFileWriter(folder + name)
    summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
    writer.add_event(Event(step=1, wall_time=1e9, summary=summary))
    writer.close()
"""


def test_the_curves_of_a_job_are_runs_of_its_tensorboard(vertex: Service, caplog: pytest.LogCaptureFixture) -> None:
    board = aiplatform.Tensorboard.create(display_name="board").resource_name
    buckets = f"{vertex.state_dir.resolve()}/gcs/"
    container = {
        "image_uri": "image",
        "command": [*script(WRITE_CURVES)],
        "env": [{"name": "BUCKETS", "value": buckets}],
    }
    pool = {"machine_spec": {"machine_type": "n1-standard-8"}, "replica_count": 1, "container_spec": container}
    job = aiplatform.CustomJob("curves", worker_pool_specs=[pool], base_output_dir="gs://b/curves")
    job.run(tensorboard=board, service_account=ACCOUNT)
    experiment = aiplatform.TensorboardExperiment(job.name, tensorboard_id=board.rpartition("/")[2])
    assert experiment.display_name == "curves"
    runs = aiplatform.TensorboardRun.list(tensorboard_experiment_name=experiment.resource_name)
    assert {run.display_name: losses(run) for run in runs} == {"default": [(1, 3.0)], "train-first": [(1, 0.0)]}
    # The client has looked for these at the end of the job.
    context = f"{PARENT}/metadataStores/default/contexts/{job.name}-train-first"
    assert vertex.get(context)["metadata"]["_state"] == "COMPLETE"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
    assert job.name not in [one.name for one in aiplatform.Experiment.list()]
    _, page = vertex.call("GET", f"/page/jobs/{job.name}")
    assert page["points"] == {"loss": [[1, 3.0]], "train-first/loss": [[1, 0.0]]}


def test_a_job_survives_the_deletion_of_its_tensorboard(vertex: Service) -> None:
    board = aiplatform.Tensorboard.create(display_name="board")
    wait = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.02)".format(
        str(go := vertex.state_dir / "go")
    )
    output = {"outputUriPrefix": "gs://b/gone"}
    body = custom_job(
        *script(wait), baseOutputDirectory=output, tensorboard=board.resource_name, serviceAccount=ACCOUNT
    )
    job = vertex.create(body)
    vertex.wait(job, "RUNNING")
    board.delete()
    folder = vertex.state_dir / "gcs/b/gone/logs"
    event(EventFileWriter(str(folder)), 1, 1.0)
    go.touch()
    assert vertex.wait(job)["state"] == "JOB_STATE_SUCCEEDED"


def event(writer: EventFileWriter, step: int, value: float) -> None:
    summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
    writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
    writer.flush()


def test_curves_grow_with_their_files(tmp_path: Path) -> None:
    store, job, board = Store(tmp_path / "state"), f"{PARENT}/customJobs/1", f"{PARENT}/tensorboards/2"
    for name in (job, board):
        store.create(name, {"displayName": "x"})
    curves, writer = Curves(store, job, board, tmp_path / "logs"), EventFileWriter(str(tmp_path / "logs/train"))
    for step in (1, 2):
        event(writer, step, 1 / step)
        curves.follow()
        curves.follow()
    (series,) = store.list(f"{board}/experiments/1/runs/train", "timeSeries")
    assert [(point["step"], point["scalar"]["value"]) for point in store.rows(series["name"])] == [
        ("1", 1.0),
        ("2", 0.5),
    ]
    assert series["metadata"] == {"maxStep": "2", "maxWallTime": "2001-09-09T01:46:42.000000Z"}
    writer.close()
    store.close()

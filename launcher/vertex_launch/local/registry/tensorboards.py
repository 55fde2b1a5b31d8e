"""TensorBoard instances, with their experiments, runs, and time series.

The points of a time series are stored as rows of its resource.
Source: google-cloud-aiplatform 2.7.0, types/tensorboard_service.py and services/tensorboard_service/client.py.
"""

import base64
import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from google.cloud.aiplatform_v1.types import tensorboard_service as service
from google.cloud.aiplatform_v1.types.tensorboard import Tensorboard
from google.cloud.aiplatform_v1.types.tensorboard_data import TimeSeriesDataPoint
from google.cloud.aiplatform_v1.types.tensorboard_experiment import TensorboardExperiment
from google.cloud.aiplatform_v1.types.tensorboard_run import TensorboardRun
from google.cloud.aiplatform_v1.types.tensorboard_time_series import TensorboardTimeSeries
from google.protobuf import json_format

from vertex_launch.errors import Finding, Findings
from vertex_launch.job.addresses import object_path
from vertex_launch.job.job_resource import Resource, camel, id_of
from vertex_launch.job.spec import as_json
from vertex_launch.local.api import filters
from vertex_launch.local.api.collection import Act, Collection, Records, fields, read_message, without_output
from vertex_launch.local.api.errors import ApiError, invalid, refuse
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.untrusted.regular_file import read_regular

BOARDS = "tensorboards"
EXPERIMENTS, RUNS = f"{BOARDS}/*/experiments", f"{BOARDS}/*/experiments/*/runs"
SERIES = f"{RUNS}/*/timeSeries"
VALUES = {"SCALAR": "scalar", "TENSOR": "tensor", "BLOB_SEQUENCE": "blobs"}  # valueType -> field of a point
MOST_WRITTEN = 5000  # the maximum number of points in one request
MOST_READ = 10_000  # the maximum number of points that a client can request from `read`
READ = {"SCALAR": 1000, "TENSOR": 100, "BLOB_SEQUENCE": 100}  # valueType -> number of points that `batchRead` returns
EPOCH = "1970-01-01T00:00:00Z"


def collections(store: Store, bucket: str) -> list[Collection]:
    """Return all TensorBoard collections. Clients write images and other blobs to `bucket`."""
    return [_Boards(store, bucket), _Experiments(store), _Runs(store), _TimeSeries(store)]


def write(store: Store, series: str, points: Sequence[Resource]) -> None:
    """Add points to a time series. Raises ApiError if the time series doesn't exist or the disk is full."""
    store.append(series, points)
    known = store.get(series).get("metadata", {})
    steps = [int(known.get("maxStep", 0)), *(int(point.get("step", 0)) for point in points)]
    times = [known.get("maxWallTime", EPOCH), *(point.get("wallTime", EPOCH) for point in points)]
    latest = {"maxStep": str(max(steps)), "maxWallTime": max(times, key=datetime.fromisoformat)}
    store.update(series, metadata=known | latest)


def scalars(store: Store, experiment: str, root: str) -> dict[str, list[tuple[int, float]]]:
    """Return an experiment's scalars as (step, value) pairs.

    Each key is TAG for the `root` run and RUN/TAG for any other run.
    """
    found = {}
    for run in store.list(experiment, "runs"):
        prefix = "" if id_of(run["name"]) == root else f"{run.get('displayName', '')}/"
        for series in store.list(run["name"], "timeSeries"):
            values = _data(store, series["name"], READ["SCALAR"])["values"] if series["valueType"] == "SCALAR" else ()
            points = [(int(point["step"]), float(point["scalar"].get("value", 0))) for point in values]
            found[f"{prefix}{series['displayName']}"] = [point for point in points if math.isfinite(point[1])]
    return found


class _Boards(Records):
    collection, message, long_running = BOARDS, Tensorboard, True
    output_only = (*Records.output_only, "blob_storage_path_prefix", "run_count")

    def __init__(self, store: Store, bucket: str) -> None:
        super().__init__(store)
        self._bucket = bucket

    def methods(self) -> dict[str, Act]:
        return super().methods() | {
            f"GET {BOARDS}/*:batchRead": self._read_many,
            f"GET {BOARDS}/*:readSize": lambda call, name: {"storageSizeByte": str(self._store.size(name))},
        }

    def create(self, parent: str, message: Tensorboard, id: str = "") -> Resource:
        """Create a TensorBoard instance. Raises ApiError ALREADY_EXISTS if the ID is in use."""
        name = super().create(parent, message, id)["name"]
        return self._store.update(name, blobStoragePathPrefix=f"{self._bucket}/tensorboards/{id_of(name)}")

    def _read_many(self, call: Call, board: str) -> Resource:
        data = []
        for name in call.query.getlist("timeSeries"):
            if not name.startswith(f"{board}/"):
                raise invalid([Finding("timeSeries", f"{name} isn't in {board}", "use a series in this TensorBoard")])
            data.append(_data(self._store, name, READ[self._store.get(name)["valueType"]]))
        return {"timeSeriesData": data}


class _Experiments(Records):
    collection, message = EXPERIMENTS, TensorboardExperiment

    def methods(self) -> dict[str, Act]:
        series, request = _TimeSeries(self._store), service.BatchCreateTensorboardTimeSeriesRequest
        return super().methods() | {
            f"POST {EXPERIMENTS}/*:batchCreate": partial(_create_many, series, request),
            f"POST {EXPERIMENTS}/*:write": self._write,
        }

    def _write(self, call: Call, experiment: str) -> Resource:
        requests = _points_in(call, service.WriteTensorboardExperimentDataRequest).write_run_data_requests
        findings = []
        for index, request in enumerate(requests):
            place = f"writeRunDataRequests[{index}]"
            if not request.tensorboard_run.startswith(f"{experiment}/"):
                raise invalid([Finding(f"{place}.tensorboardRun", f"isn't in {experiment}", "use its runs")])
            findings += [fault.below(place) for fault in _faults(self._store, request.tensorboard_run, request)]
        refuse(findings)
        for request in requests:
            _write(self._store, request.tensorboard_run, request)
        return {}


class _Runs(Records):
    collection, message = RUNS, TensorboardRun

    def methods(self) -> dict[str, Act]:
        return super().methods() | {
            f"POST {RUNS}:batchCreate": partial(_create_many, self, service.BatchCreateTensorboardRunsRequest),
            f"POST {RUNS}/*:write": self._write,
        }

    def _write(self, call: Call, run: str) -> Resource:
        request = _points_in(call, service.WriteTensorboardRunDataRequest)
        refuse(_faults(self._store, run, request))
        _write(self._store, run, request)
        return {}


class _TimeSeries(Records):
    """The time series of TensorBoard instances. The display name of a time series is unique within its run."""

    collection, message = SERIES, TensorboardTimeSeries
    output_only = (*Records.output_only, "metadata")

    def methods(self) -> dict[str, Act]:
        return super().methods() | {
            f"GET {SERIES}/*:read": self._read,
            f"GET {SERIES}/*:readBlobData": self._read_blobs,
            f"POST {SERIES}/*:exportTensorboardTimeSeries": self._export,
        }

    def create(self, parent: str, message: TensorboardTimeSeries, id: str = "") -> Resource:
        """Create a time series. Raises ApiError if the run doesn't exist or already has this time series."""
        name = message.display_name
        if not message.value_type:
            raise invalid([Finding("valueType", "is missing", f"use one of {', '.join(VALUES)}")])
        if any(series.get("displayName", "") == name for series in self.list(parent)):
            # The SDK's uploader searches for the words "already exists".
            raise invalid([Finding("displayName", f'"{name}" already exists in {parent}', "use another")])
        return super().create(parent, message, id)

    def _read(self, call: Call, name: str) -> Resource:
        asked = call.query.get("maxDataPoints", "") or "1000"
        if not re.fullmatch("-1|[0-9]{1,5}", asked) or int(asked) > MOST_READ:
            fault = f'"{asked}" isn\'t a valid number of points'
            raise invalid([Finding("maxDataPoints", fault, f"use a number up to {MOST_READ}, or -1 for all")])
        return {"timeSeriesData": _data(self._store, name, int(asked), call.query.get("filter", ""))}

    def _read_blobs(self, call: Call, name: str) -> Resource:
        """Return blobs. Clients upload each blob as an object before writing its ID."""
        prefix = self._store.get(name.partition("/experiments/")[0])["blobStoragePathPrefix"]
        blobs = []
        for id in call.query.getlist("blobIds"):
            file = object_path(f"gs://{prefix}/{id}", self._buckets)
            if not (file and file.is_file()):
                raise ApiError("NOT_FOUND", f"gs://{prefix}/{id} does not exist")
            blobs.append({"id": id, "data": base64.b64encode(read_regular(file)).decode()})
        return {"blobs": blobs}

    def _export(self, call: Call, name: str) -> Resource:
        asked = as_json(read_message(call, service.ExportTensorboardTimeSeriesDataRequest))
        query = {key: str(value) for key, value in asked.items()}
        shown, token = filters.page(_points(self._store, name), fields(TimeSeriesDataPoint), **query)
        return {"timeSeriesDataPoints": shown} | ({"nextPageToken": token} if token else {})


def _points(store: Store, series: str) -> list[Resource]:
    """Return the points of a time series, ordered by step. For each step, return only the last point."""
    by_step = {int(point.get("step", 0)): {"step": "0", **point} for point in store.rows(series)}
    return [by_step[step] for step in sorted(by_step)]


def _data(store: Store, series: str, most: int, expression: str = "") -> Resource:
    """Return a time series with up to `most` points that match a filter. If `most` is -1, return all matching points.

    Vertex AI selects random points. The local Vertex selects evenly spaced points, including the last one.
    """
    matches = filters.predicate(expression, fields(TimeSeriesDataPoint))
    found = [point for point in _points(store, series) if matches(point)]
    if 0 <= most < len(found):
        found = [found[-1 - index * len(found) // most] for index in reversed(range(most))]
    kind = store.get(series)["valueType"]
    return {"tensorboardTimeSeriesId": id_of(series), "valueType": kind, "values": found}


def _points_in(call: Call, request: Any) -> Any:
    """Parse a request to write points.

    Raises ApiError if the request isn't valid. To save time, report only the first error.
    """
    message = request.pb(request())
    try:
        return json_format.ParseDict(call.json(), message)
    except (json_format.ParseError, OverflowError) as error:  # such as an infinite valueType
        raise ApiError("INVALID_ARGUMENT", f"{error}; correct this value") from None


def _faults(store: Store, run: str, request: Any) -> Findings:
    """Yield a finding for each problem with the points in a request.

    Raises ApiError NOT_FOUND if a time series doesn't exist.
    """
    count = sum(len(data.values) for data in request.time_series_data)
    if count > MOST_WRITTEN:
        yield Finding("timeSeriesData", f"has {count} points", f"send at most {MOST_WRITTEN} in one request")
    for index, data in enumerate(request.time_series_data):
        place = f"timeSeriesData[{index}]"
        kind = store.get(f"{run}/timeSeries/{data.tensorboard_time_series_id}")["valueType"]
        if data.value_type != getattr(TensorboardTimeSeries.ValueType, kind):
            yield Finding(f"{place}.valueType", "doesn't match the time series", f"use {kind}")
        for number, point in enumerate(data.values):
            if point.WhichOneof("value") != VALUES[kind]:
                yield Finding(f"{place}.values[{number}]", f"has no {VALUES[kind]}", "add it")


def _write(store: Store, run: str, request: Any) -> None:
    for data in request.time_series_data:
        added = [json_format.MessageToDict(point) for point in data.values]
        write(store, f"{run}/timeSeries/{data.tensorboard_time_series_id}", added)


def _create_many(records: Records, request: Any, call: Call, above: str) -> Resource:
    """Create several runs or time series in an experiment."""
    experiment = above.removesuffix("/runs")
    wanted: Iterable[Any] = read_message(call, request).requests
    elsewhere = [index for index, one in enumerate(wanted) if not f"{one.parent}/".startswith(f"{experiment}/")]
    refuse(Finding(f"requests[{index}].parent", f"isn't in {experiment}", "use its runs") for index in elsewhere)
    field = "tensorboard_time_series" if isinstance(records, _TimeSeries) else "tensorboard_run"
    created = []
    for one in wanted:
        message = without_output(getattr(one, field), records.output_only)
        created.append(records.create(one.parent, message, getattr(one, f"{field}_id")))
    return {f"{camel(field).removesuffix('s')}s": created}

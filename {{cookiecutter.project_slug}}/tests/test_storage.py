from pathlib import Path

import pytest

from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage, Trial, from_env

VERTEX = {
    "AIP_MODEL_DIR": "gs://b/run/model/",
    "AIP_CHECKPOINT_DIR": "gs://b/run/checkpoints/",
    "AIP_TENSORBOARD_LOG_DIR": "gs://b/run/logs/",
}


def test_on_vertex_the_folders_lie_below_gcs() -> None:
    storage = from_env(VERTEX)
    assert storage == Storage(
        Path("/gcs/b/run/model"), Path("/gcs/b/run/checkpoints"), Path("/gcs/b/run/logs"), Path("/gcs")
    )
    assert not storage.emulated


def test_in_the_local_vertex_another_folder_stands_for_gcs(tmp_path: Path) -> None:
    storage = from_env(VERTEX | {"GCS_MOUNT": str(tmp_path)})
    assert storage.checkpoints == tmp_path / "b/run/checkpoints"
    assert storage.emulated


@pytest.mark.parametrize("environ", [{}, dict.fromkeys(VERTEX, ""), {"GCS_MOUNT": ""}])
def test_without_vertex_everything_is_below_output(environ: dict[str, str]) -> None:
    storage = from_env(environ)
    assert storage == Storage()
    assert {storage.model.parts[0], storage.checkpoints.parts[0], storage.logs.parts[0]} == {"output"}


def test_each_folder_has_a_default_of_its_own() -> None:
    storage = from_env({"AIP_MODEL_DIR": "gs://b/model/"})
    assert (storage.model, storage.logs) == (Path("/gcs/b/model"), Path("output/logs"))


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("gs://b/data", "/mount/b/data"),
        ("gs://b/data/", "/mount/b/data"),
        ("/gcs/b/data", "/mount/b/data"),
        ("gs:///b/data", "/mount/b/data"),
        ("/gcs//b/data", "/mount/b/data"),
        ("data", "data"),
        ("./data/x", "data/x"),
        ("/home/me/data", "/home/me/data"),
        ("/gcs-backup/data", "/gcs-backup/data"),
    ],
)
def test_an_address_is_a_path_below_the_mount_or_an_ordinary_one(address: str, path: str) -> None:
    assert Storage(mount=Path("/mount")).path(address) == Path(path)


@pytest.mark.parametrize("address", ["s3://b/data", "https://example.org/data", "file:///data", "GS://b/data"])
def test_what_no_mount_can_serve_is_refused_with_a_cure(address: str) -> None:
    with pytest.raises(TrainerError, match=f"^{address} .*gs://BUCKET/FOLDER; copy the data to a bucket first$"):
        Storage().path(address)


@pytest.mark.parametrize(
    ("environ", "trial"),
    [
        ({}, None),
        ({"CLOUD_ML_TRIAL_ID": "", "CLOUD_ML_HP_METRIC_FILE": ""}, None),
        ({"CLOUD_ML_TRIAL_ID": "3", "CLOUD_ML_HP_METRIC_FILE": "/m"}, Trial("3", Path("/m"))),
        ({"CLOUD_ML_TRIAL_ID": "3"}, Trial("3", Path("/tmp/hypertune/output.metrics"))),
        ({"CLOUD_ML_HP_METRIC_FILE": "/m"}, Trial("0", Path("/m"))),
    ],
)
def test_a_trial_of_a_tuning_job_knows_itself_as_cloudml_hypertune_does(
    environ: dict[str, str], trial: Trial | None
) -> None:
    assert from_env(environ).trial == trial

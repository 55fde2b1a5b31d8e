"""Last words of replicas whose cure is known."""

import pytest

from vertex_launch.local.running.hints import hint

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/project/task.py", line 13, in <module>
    model.save(path)
  File "/env/lib/python3.11/site-packages/tensorflow/python/lib/io/file_io.py", line 513, in recursive_create_dir_v2
    _pywrap_file_io.RecursivelyCreateDir(compat.path_to_bytes(path))"""
# As TensorFlow 2.21 words it, without a network and without credentials.
REFUSED = """tensorflow.python.framework.errors_impl.{} Error executing an HTTP request: {}
 when {} gs://my-bucket/{}{}"""
NO_NETWORK = (
    "libcurl code 6 meaning 'Could not resolve hostname', error details: Could not resolve host: www.googleapis.com"
)
FORBIDDEN = """HTTP response code 401 with body '{
  "error": {"code": 401, "message": "Anonymous caller does not have storage.objects.create access"}}'"""


@pytest.mark.parametrize(
    ("said", "place"),
    [
        (
            REFUSED.format("FailedPreconditionError:", NO_NETWORK, "reading metadata of", "model/variables", ""),
            "model/variables",
        ),
        (
            REFUSED.format("UnauthenticatedError:", FORBIDDEN, "initiating an upload to", "model/saved_model.pb", ""),
            "model/saved_model.pb",
        ),
        (
            REFUSED.format("FailedPreconditionError:", NO_NETWORK, "reading", "logs/", " [Op:CreateSummaryFileWriter]"),
            "logs",
        ),
    ],
)
def test_who_writes_to_a_bucket_through_tensorflow_is_told_the_line_and_the_folder(said: str, place: str) -> None:
    told = hint(f"{TRACEBACK}\n{said}".splitlines())
    assert told.startswith("/home/me/project/task.py:13: TensorFlow's gs:// leads to Google Cloud itself")
    assert f"write to /gcs/my-bucket/{place}, which" in told


@pytest.mark.parametrize(
    "said",
    [
        "google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found.",
        "gcsfs.retry.HttpError: Anonymous caller does not have storage.objects.list access to the bucket., 401",
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='storage.googleapis.com', port=443): Max retries",
        "OSError: google::cloud::Status(UNAVAILABLE: CURL error 6: Could not resolve host: storage.googleapis.com)",
    ],
)
def test_whose_storage_client_leaves_for_google_is_told_where_its_buckets_are(said: str) -> None:
    told = hint([*TRACEBACK.splitlines(), said])
    assert told.startswith("/home/me/project/task.py:13: a replica here has no login to Google Cloud")
    assert "at /gcs/BUCKET" in told


def test_other_last_words_have_no_hint() -> None:
    assert hint([]) == ""
    assert hint(TRACEBACK.splitlines()) == ""
    assert hint(["requests.exceptions.HTTPError: when calling gs://b/x"]) == ""

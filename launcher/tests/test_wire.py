"""Google's clients in a replica: without a setting, with any login, they reach the local Vertex, and nobody else."""

import contextlib
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from launcher.tests.running import SETTINGS, eventually
from launcher.tests.servers import serving
from launcher.tests.test_run import launch, pool, write
from launcher.tests.vertex import PARENT, Json, Service, custom_job, script, service
from vertex_launch.job.contract import project_number

NUMBER = project_number("p")
ACCOUNT = f"{NUMBER}-compute@developer.gserviceaccount.com"


def may_serve() -> bool:
    """Whether this user may listen at the port of a metadata server."""
    with contextlib.suppress(OSError), socket.create_server(("127.255.0.1", 80)):
        return True
    return False


MAY_SERVE = may_serve()


class Recorder(BaseHTTPRequestHandler):
    """The proxy of a shell, which notes who is asked for and lets nobody through."""

    asked: list[str]

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def recorder() -> Iterator[tuple[str, list[str]]]:
    """The address of a shell's proxy, and the hosts for which it was asked."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Noting", (Recorder,), {"asked": asked}))
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}", asked


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory, recorder: tuple[str, list[str]]) -> Iterator[Service]:
    """A service whose shell goes to the world through the recorder."""
    with pytest.MonkeyPatch.context() as shell:
        shell.setenv("https_proxy", recorder[0])
        shell.setenv("no_proxy", "127.0.0.1")
        with service(tmp_path_factory.mktemp("vertex")) as running:
            yield running


def said(vertex: Service, code: str, **spec: Any) -> list[str]:
    """What a replica prints that runs this code; its job succeeds."""
    name = vertex.create(custom_job(*script(code), **spec))
    vertex.wait(name, "SUCCEEDED")
    return [line.removeprefix("workerpool0-0: ") for line in vertex.log(name)]


def test_a_replica_is_the_jobs_account_in_its_project(vertex: Service) -> None:
    code = """
import google.auth, google.auth.transport.requests as transport
credentials, project = google.auth.default()
credentials.refresh(transport.Request())
print(project, credentials.service_account_email, credentials.token)
"""
    assert said(vertex, code) == [f"p {ACCOUNT} local-vertex"]
    own = "trainer@p.iam.gserviceaccount.com"
    assert said(vertex, code, serviceAccount=own) == [f"p {own} local-vertex"]


def test_the_sdk_finds_its_own_job_by_its_default_transport(vertex: Service) -> None:
    code = """
import os
from google.cloud import aiplatform
aiplatform.init()
print(aiplatform.CustomJob.list()[0].name == os.environ["CLOUD_ML_JOB_ID"])
try:
    aiplatform.CustomJob.get("17")
except Exception as error:
    print(type(error).__name__)
print(aiplatform.Experiment.create("of-a-replica").name)
"""
    assert said(vertex, code) == ["True", "NotFound", "of-a-replica"]
    vertex.get(f"{PARENT}/metadataStores/default/contexts/of-a-replica")  # the SDK named the project by its number


def test_a_second_client_finds_the_server_of_the_default_transport_alive(vertex: Service) -> None:
    code = """
from google.cloud.aiplatform_v1 import DatasetServiceClient, JobServiceClient
options = {"api_endpoint": "us-central1-aiplatform.googleapis.com"}
parent = "projects/p/locations/us-central1"
for _ in range(2):
    print([*DatasetServiceClient(client_options=options).list_datasets(parent=parent, timeout=30)])
    print(len([*JobServiceClient(client_options=options).list_custom_jobs(parent=parent, timeout=30)]) > 0)
"""
    assert said(vertex, code) == ["[]", "True"] * 2


def test_calls_by_the_default_transport_leave_no_connection_open(vertex: Service) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
from google.cloud.aiplatform_v1 import JobServiceClient
def call(client):
    client.list_custom_jobs(parent="projects/p/locations/us-central1", timeout=60)
    client.list_hyperparameter_tuning_jobs(parent="projects/p/locations/us-central1", timeout=60)
with ThreadPoolExecutor(CALLS) as threads:
    for _ in range(CHANNELS):
        client = JobServiceClient(client_options={"api_endpoint": "us-central1-aiplatform.googleapis.com"})
        [*threads.map(call, [client] * CALLS)]
"""
    said(vertex, code.replace("CHANNELS", "1").replace("CALLS", "1"))  # the server of this transport starts now
    service = psutil.Process(vertex.process.pid)
    before = service.num_fds()
    said(vertex, code.replace("CHANNELS", "12").replace("CALLS", "8"))
    assert eventually(lambda: service.num_fds() <= before + 3)


def test_the_default_transport_raises_what_the_service_answers(vertex: Service) -> None:
    code = """
from google.cloud import aiplatform
aiplatform.init(project="p", location="us-central1")  # without a project, the SDK takes REST
def series():
    aiplatform.TimeSeriesDataset.create("outside", gcs_source="gs://b/table.csv")
for create in (series, aiplatform.Endpoint.create):
    try:
        create()
    except Exception as error:
        print(type(error).__name__, error.message.partition(";")[0])
"""
    kinds = "tabular_1.0.0.yaml, image_1.0.0.yaml, text_1.0.0.yaml"
    assert said(vertex, code) == [
        f"InvalidArgument metadataSchemaUri: the local Vertex supports only datasets of {kinds}",
        "NotFound the local Vertex has no endpoints",
    ]


def test_storage_clients_read_and_write_local_buckets_at_googles_own_address(vertex: Service) -> None:
    code = """
import os, urllib.request
from google.cloud import storage
del os.environ["STORAGE_EMULATOR_HOST"]
blob = storage.Client().bucket("b").blob("a b/c.txt")
blob.upload_from_string("over TLS")
print(blob.download_as_text(), os.path.exists("/gcs/b/a b/c.txt"))
print(urllib.request.urlopen("https://storage.googleapis.com/b/a%20b/c.txt").read().decode())
"""
    assert said(vertex, code) == ["over TLS True", "over TLS"]


def test_an_upload_as_tensorflow_sends_it_is_taken(vertex: Service) -> None:
    """Its request names an encoding that HTTP has dropped, and it reads `Location` in this case alone."""
    code = """
import socket, ssl, os
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["https_proxy"])
raw = socket.create_connection((proxy.hostname, proxy.port))
raw.sendall(b"CONNECT www.googleapis.com:443 HTTP/1.1\\r\\n\\r\\n")
print(raw.recv(1000).split(b"\\r\\n")[0].decode())
tls = ssl.create_default_context().wrap_socket(raw, server_hostname="www.googleapis.com")
tls.sendall(b"POST /upload/storage/v1/b/b/o?uploadType=resumable&name=t HTTP/1.1\\r\\nHost: www.googleapis.com\\r\\n"
            b"Content-Length: 0\\r\\nTransfer-Encoding: identity\\r\\n\\r\\n")
head = tls.recv(10000).decode()
print(head.split("\\r\\n")[0], "\\r\\nLocation: https://www.googleapis.com/upload" in head)
"""
    assert said(vertex, code) == ["HTTP/1.1 200 Connection established", "HTTP/1.1 200 OK True"]


def test_a_service_that_is_not_here_is_named_and_not_reached(vertex: Service, recorder: tuple[str, list[str]]) -> None:
    code = """
import urllib.request, urllib.error
try:
    urllib.request.urlopen("https://bigquery.googleapis.com/bigquery/v2/projects/p/jobs")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
    (line,) = said(vertex, code)
    assert line.startswith("501 ")
    assert "bigquery.googleapis.com isn't available locally, and local replicas can't reach Google Cloud" in line
    assert not [host for host in recorder[1] if "bigquery" in host]


def test_the_users_own_login_stays_on_this_machine(vertex: Service, recorder: tuple[str, list[str]]) -> None:
    """A replica that was given a real key gets a token of the local Vertex for it; elsewhere it goes as it did."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    account = {
        "type": "service_account",
        "client_email": "me@real.iam.gserviceaccount.com",
        "private_key": key.decode(),
    }
    (vertex.state_dir / "key.json").write_text(
        json.dumps(account | {"token_uri": "https://oauth2.googleapis.com/token", "project_id": "real"})
    )
    code = f"""
import os, urllib.request
os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = {str(vertex.state_dir / "key.json")!r}
import google.auth, google.auth.transport.requests as transport
credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(transport.Request())
print(project, credentials.token)
from google.cloud import storage
print([bucket.name for bucket in storage.Client().list_buckets()])
for url in ("https://example.org/", "https://storage.googleapis.com/public-data/x.npz"):
    try:
        urllib.request.urlopen(url, timeout=60)
    except OSError as error:
        print(error)
"""
    del recorder[1][:]
    lines = said(vertex, code)
    assert lines[:2] == ["real local-vertex", "['b']"]
    assert "403" in lines[2]  # as the shell's proxy says
    assert lines[3] == "HTTP Error 404: Not Found"
    assert recorder[1] == ["example.org:443", "storage.googleapis.com:443"]  # the latter a public object, with no login


def test_a_client_that_goes_past_the_proxy_finds_nobody(vertex: Service) -> None:
    code = """
import socket
for host in ("storage.googleapis.com", "us-central1-aiplatform.googleapis.com", "metadata.google.internal"):
    print(socket.gethostbyname(host))
"""
    *apis, metadata = said(vertex, code)
    assert apis == ["127.0.0.1"] * 2
    assert metadata.startswith("127.")


def test_what_programs_write_to_cloud_logging_is_found_there(vertex: Service) -> None:
    code = """
import json, urllib.request
entry = {"logName": "projects/p/logs/mine", "resource": {"type": "global"}, "severity": "WARNING", "textPayload": "hot"}
def post(method, body):
    request = urllib.request.Request(f"https://logging.googleapis.com/v2/entries:{method}", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    return json.load(urllib.request.urlopen(request))
post("write", {"entries": [entry]})
wanted = 'logName="projects/p/logs/mine" AND severity>=WARNING'
print(*[found["textPayload"] for found in post("list", {"resourceNames": ["projects/p"], "filter": wanted})["entries"]])
"""
    assert said(vertex, code) == ["hot"]


def test_the_metadata_server_refuses_who_does_not_say_that_he_means_it(vertex: Service) -> None:
    code = """
import os, urllib.request, urllib.error
root = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1"
def get(path, **headers):
    try:
        print(urllib.request.urlopen(urllib.request.Request(f"{root}/{path}", headers=headers)).read().decode().split())
    except urllib.error.HTTPError as error:
        print(error.code)
means = {"Metadata-Flavor": "Google"}
get("project/project-id")
get("project/project-id", **means)
get("instance/service-accounts/", **means)
get("instance/zone", **means)
get("instance/nothing", **means)
"""
    zone = f"projects/{NUMBER}/zones/us-central1-a"
    assert said(vertex, code) == ["403", "['p']", f"['default/', '{ACCOUNT}/']", f"['{zone}']", "404"]


@pytest.mark.skipif(not MAY_SERVE, reason="this user may not listen at port 80")
def test_each_job_finds_its_own_metadata_server_under_its_name(vertex: Service) -> None:
    """By programs that read none of the variables; both jobs run at once."""
    code = """
import os, time, urllib.request
root = "http://metadata.google.internal"
print(urllib.request.urlopen(root).read().decode(), end="")
headers = {"Metadata-Flavor": "Google"}
path = f"{root}/computeMetadata/v1/instance/service-accounts/default/email"
print(urllib.request.urlopen(urllib.request.Request(path, headers=headers)).read().decode())
open(f"/gcs/b/{os.environ['CLOUD_ML_JOB_ID']}", "w").close()
while len([name for name in os.listdir("/gcs/b") if name.isdigit()]) < 2:
    time.sleep(0.1)
"""
    own = "trainer@p.iam.gserviceaccount.com"
    specs: tuple[Json, Json] = {}, {"serviceAccount": own}
    jobs = [vertex.create(custom_job(*script(code), **spec)) for spec in specs]
    for job, account in zip(jobs, (ACCOUNT, own), strict=True):
        vertex.wait(job, "SUCCEEDED")
        assert vertex.log(job) == ["workerpool0-0: computeMetadata/", f"workerpool0-0: {account}"]


def test_a_run_has_the_buckets_and_says_where_the_rest_is(tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text(SETTINGS)
    code = """
import os, urllib.request, urllib.error
from google.cloud import storage
storage.Client().bucket("b").blob("x").upload_from_string("of a run")
print(open("/gcs/b/x").read())
try:
    urllib.request.urlopen("https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/l/customJobs")
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""
    run = launch(tmp_path, "run", write(tmp_path, pool(code)))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "of a run" in run.stdout
    assert "emulate" in run.stdout
    assert not list((tmp_path / ".vertex/homes").glob("*"))


def test_a_broken_client_ends_its_own_connection_alone(vertex: Service) -> None:
    code = """
import os, socket
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["https_proxy"])
no_tls = b"CONNECT storage.googleapis.com:443 HTTP/1.1\\r\\n\\r\\nno TLS" * 9
odd = (b"", b"\\r\\n\\r\\n", b"CONNECT\\r\\n\\r\\n", b"CONNECT :x HTTP/1.1\\r\\n\\r\\n", b"\\xff" * 70000)
for words in (*odd, no_tls, b"GET /../.. HTTP/1.1\\r\\n\\r\\n"):
    with socket.create_connection((proxy.hostname, proxy.port)) as raw:
        raw.sendall(words)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(1000):
            pass
import google.auth
print(google.auth.default()[1])
"""
    assert said(vertex, code)[-1] == "p"
    assert "Traceback" not in (vertex.folder / "service.log").read_text()

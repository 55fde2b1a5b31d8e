"""The jobs of the command `run`, as a service in the same folder shows them."""

import contextlib
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from launcher.tests.running import DEADLINE, eventually
from launcher.tests.test_run import command, environment, launch, pool, write
from launcher.tests.vertex import BY_ID, PARENT, Json, Service, service

PASSED = "[env]\nPYTHONPATH = true\n"
FOREVER = "import time; print('started', flush=True); time.sleep(600)"


def listed(vertex: Service) -> list[Json]:
    """The jobs on the page."""
    with urllib.request.urlopen(f"{vertex.endpoint}/page/jobs", timeout=DEADLINE) as answer:
        jobs: list[Json] = json.loads(answer.read())["jobs"]
    return jobs


def states(vertex: Service) -> list[str]:
    return [job["state"] for job in listed(vertex)]


@contextlib.contextmanager
def running(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The command `run` on its way with a job whose replica has begun."""
    words = command("run", write(folder, pool(FOREVER)))
    silent = subprocess.DEVNULL
    launcher = subprocess.Popen(words, cwd=folder, env=environment(), stdout=silent, stderr=silent)
    logs = (folder / ".vertex/jobs").glob
    try:
        assert eventually(lambda: any("started" in path.read_text() for path in logs("*/workerpool0-0.log")))
        yield launcher
    finally:
        launcher.kill()
        launcher.wait(DEADLINE)


def test_a_service_shows_the_runs_before_it_with_log_and_end(tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text(f'project = "p"\nregion = "us-central1"\nbucket = "b"\nimage = "i"\n{PASSED}')
    launch(tmp_path, "run", write(tmp_path, pool("print('hello')"), name="good.yaml"))
    launch(tmp_path, "run", write(tmp_path, pool("print('oh'); exit(9)"), name="bad.yaml"))
    with service(tmp_path) as vertex:
        bad, good = listed(vertex)
        assert [(job["name"], job["state"]) for job in (good, bad)] == [("good", "SUCCEEDED"), ("bad", "FAILED")]
        assert good["machines"] == ["1 x n1-standard-4 with 4 x NVIDIA_TESLA_T4"]
        assert good["created"] < good["started"] < good["ended"]
        assert bad["error"].startswith("The replica workerpool0-0 exited with a non-zero status of 9.")
        name = f"{PARENT}/customJobs/{bad['id']}"
        assert vertex.get(name)["error"]["code"] == 3
        assert vertex.log(name) == ["workerpool0-0: oh"]
        status, _ = vertex.call("DELETE", f"/v1/{name}")
        assert (status, len(listed(vertex))) == (200, 1)


def test_a_service_shows_a_run_beside_it_and_leaves_its_end_to_the_run(tmp_path: Path) -> None:
    with service(tmp_path, settings=PASSED) as vertex, running(tmp_path) as launcher:
        assert eventually(lambda: states(vertex) == ["RUNNING"])
        (job,) = listed(vertex)
        name = f"{BY_ID}/customJobs/{job['id']}"
        assert eventually(lambda: vertex.log(name) == ["workerpool0-0: started"])
        status, answer = vertex.call("POST", f"/v1/{name}:cancel", {})
        assert (status, answer["error"]["message"]) == (
            400,
            f"the `run` command started {name}; stop that command",
        )
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(DEADLINE) == 130
        assert eventually(lambda: states(vertex) == ["CANCELLED"])


def test_a_run_that_is_killed_has_failed_and_one_that_goes_on_survives_the_service(tmp_path: Path) -> None:
    with service(tmp_path, settings=PASSED) as vertex, running(tmp_path):
        assert eventually(lambda: states(vertex) == ["RUNNING"])
    with running(tmp_path) as launcher, service(tmp_path, settings=PASSED) as vertex:
        assert eventually(lambda: states(vertex) == ["RUNNING", "FAILED"])
        launcher.kill()
        assert eventually(lambda: states(vertex) == ["FAILED", "FAILED"])


def test_the_home_folder_of_a_killed_run_goes_at_the_next_start_and_that_of_a_living_run_stays(tmp_path: Path) -> None:
    def homes() -> set[Path]:
        return {*(tmp_path / ".vertex/homes").iterdir()}

    with running(tmp_path):
        (killed,) = homes()
        (killed / "model.bin").touch()
    assert homes() == {killed}
    with running(tmp_path):
        assert eventually(lambda: len(homes() - {killed}) == 1)
        (living,) = homes()
        launch(tmp_path, "run", write(tmp_path, pool("print('hello')"), name="short.yaml"))
        with service(tmp_path, settings=PASSED):
            assert homes() == {living}
    with service(tmp_path, settings=PASSED):
        assert not homes()

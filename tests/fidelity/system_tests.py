"""Google's own system tests, unmodified, as a custom job of the local Vertex: python -m tests.fidelity.system_tests.

A replica's clients reach the local Vertex without a setting, so that the tests know nothing of it: they take their
default transport, gRPC, and the account of the job. Their sources come with the source distribution of the SDK.
"""

import fcntl
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from launcher.tests.vertex import custom_job, service
from tests.conftest import ROOT, kept_folder
from tests.fidelity.environments import environment

RELEASE = "2.7.0"
RECORD = ROOT / "tests/fidelity/system_tests.json"
FOLDER = "tests/system/aiplatform"
SECONDS = 600.0  # for all tests together
# The frameworks are as old as the tests ask for.
PACKAGES = (
    *(f"google-cloud-aiplatform[autologging]=={RELEASE}", "google-cloud-testutils", "kfp==2.13.0", "pyarrow<18"),
    *("pytest", "pytest-asyncio", "scikit-learn==1.5.2", "setuptools", "tensorflow-cpu==2.14.1", "xgboost-cpu==3.2.0"),
)
# Modules without a test of what the local Vertex has, most of which need packages for it, or that nobody can import.
LEFT_OUT = {
    "test_language_models": "the local Vertex has no generative models",
    "test_multimodal_dataset": "the local Vertex has no BigQuery",
    "test_persistent_resource": "it imports a package that Google doesn't publish",
    "test_prediction_cpr": "the local Vertex has no endpoints",
    "test_vision_models": "the local Vertex has no generative models",
    "test_vizier": "the local Vertex has no studies",
}
# Tests that would install from where a machine of tests may not look.
NOT_RUN = {
    "test_project_id_inference: test_project_id_inference": "it installs the latest revision of a repository",
}
# Why tests fail whose names begin so, where that is not the service's refusal of one of their calls.
FAILS = {
    "test_autologging_with_autorun_creation": "it expects a metric name of mlflow 1",
    "test_end_to_end_tabular": "it trains with AutoML, which is rejected, and runs a script that needs TensorFlow",
    "test_export_data": "it reads a dataset of Google's own project",
    "test_get_experiments_df": "it counts the run of a PipelineJob, which was rejected",
    "test_mdm_": "it monitors an endpoint, which was rejected",
    "test_model_evaluate_custom_tabular_model": "it reads a model of Google's own project",
    "test_model_monitoring": "it reads a model of Google's own project",
}
REFUSAL = re.compile(
    r"the local Vertex has no \w+|requires autologging but not mlflow|\w+\.googleapis\.com isn't available locally|"
    r"metadataSchemaUri: [^;\n]+"
)
# Public objects that the tests read, by their names in the bucket of Google's samples; no test asks for more of them.
SAMPLES = "cloud-samples-data-us-central1"
OBJECTS = {
    "ai-platform-unified/datasets/images/isg_data.jsonl": json.dumps({"imageGcsUri": f"gs://{SAMPLES}/flower.jpg"}),
    "vertex-ai/google-cloud-aiplatform-ci-artifacts/models/iris_xgboost/model.bst": "a model",
    "vertex-ai/structured_data/california_housing/california-housing-data.csv": "longitude,median_house_value\n1,2\n",
}


def verdicts(folder: Path) -> dict[str, str]:
    """Run the tests by a service in this folder; returns their verdicts by module and name."""
    home = kept_folder(f"system-tests-{RELEASE}", folder)
    python = environment(home, PACKAGES)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = _sources(home)
    for name, content in OBJECTS.items():
        path = folder / ".vertex/gcs" / SAMPLES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    report = folder / ".vertex/report.xml"  # which the end of the replica leaves there
    tests = " or ".join(test.partition(": ")[2] for test in NOT_RUN)
    chosen = (*(f"--ignore={FOLDER}/{module}.py" for module in LEFT_OUT), "-k", f"not ({tests})")
    alone = ("-c", "/dev/null", "--rootdir", sources, "-p", "no:cacheprovider")  # without a configuration further up
    pytest = (python, "-m", "pytest", "-q", *alone, f"--junitxml={report}", *chosen, FOLDER)
    command = f"cd {shlex.quote(str(sources))} && {shlex.join(map(str, pytest))}; test -s {shlex.quote(str(report))}"
    job = custom_job("bash", "-c", f"BUILD_SPECIFIC_GCLOUD_PROJECT=p; export BUILD_SPECIFIC_GCLOUD_PROJECT; {command}")
    with service(folder, "--grace-seconds", "0.5", settings="") as vertex:
        name = vertex.create(job)
        ended = vertex.wait(name, seconds=SECONDS)
        assert ended["state"] == "JOB_STATE_SUCCEEDED", "\n".join(vertex.log(name))
    return dict(sorted(_of_report(report)))


def recorded() -> Mapping[str, str]:
    """Return the verdicts of the last run that was kept."""
    found: dict[str, str] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _sources(home: Path) -> Path:
    """Return the folder of the SDK's source distribution, fetched if it is not there."""
    sources = home / f"google_cloud_aiplatform-{RELEASE}"
    if not (sources / FOLDER).exists():
        fetch = (*("pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"), f"--dest={home}")
        subprocess.run([sys.executable, "-m", *fetch, f"google-cloud-aiplatform=={RELEASE}"], check=True)
        with tarfile.open(home / f"{sources.name}.tar.gz") as archive:
            archive.extractall(home, filter="data")
    return sources


def _of_report(report: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        yield f"{case.attrib['classname'].split('.')[-2]}: {case.attrib['name']}", _verdict(case)
    yield from ((f"{module}: all", f"not run: {why}") for module, why in LEFT_OUT.items())
    yield from ((test, f"not run: {why}") for test, why in NOT_RUN.items())


def _verdict(case: ElementTree.Element) -> str:
    if (skipped := case.find("skipped")) is not None:
        return f"not run: Google skips it, {skipped.attrib['message']}"
    faults = [fault.text or "" for kind in ("error", "failure") for fault in case.findall(kind)]
    if not faults:
        return "passed"
    if reasons := [why for start, why in FAILS.items() if case.attrib["name"].startswith(start)]:
        return f"fails: {reasons[0]}"
    refusal = REFUSAL.search("\n".join(faults))
    return f"refused: {refusal[0].removeprefix('metadataSchemaUri: ')}" if refusal else "wrong: it fails"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        RECORD.write_text(f"{json.dumps(verdicts(Path(folder)), indent=2)}\n", encoding="utf-8")

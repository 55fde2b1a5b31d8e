import json
import random
import re
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.cloud.aiplatform_v1.types import (
    AcceleratorType,
    CustomJob,
    CustomJobSpec,
    HyperparameterTuningJob,
    Scheduling,
    StudySpec,
    TrainingPipeline,
)

from vertex_launch.errors import FaultError, Finding
from vertex_launch.job import strict_yaml
from vertex_launch.job.spec import Job, TuningJob, as_json, load, parse, read

GOOD = """\
workerPoolSpecs:
- machineSpec: &machine
    machineType: a2-highgpu-8g
    acceleratorType: NVIDIA_TESLA_A100
    acceleratorCount: 8
  replicaCount: 1
  containerSpec: &task
    imageUri: us-central1-docker.pkg.dev/demo/training/trainer:1
    args: ["--steps", "100"]
    env: [{name: SEED, value: "7"}]
- {machineSpec: *machine, replicaCount: 3, containerSpec: *task}
- machineSpec: {machineType: n1-highcpu-16}
  replicaCount: 13
  containerSpec: {imageUri: us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest}
scheduling: {timeout: 3600s, strategy: SPOT, restartJobOnWorkerRestart: true}
baseOutputDirectory: {outputUriPrefix: gs://demo/run}
"""
TUNING = """\
displayName: search
maxTrialCount: 6
parallelTrialCount: 2
studySpec:
  metrics: [{metricId: accuracy, goal: MAXIMIZE}]
  parameters:
  - {parameterId: rate, doubleValueSpec: {minValue: 1.0e-4, maxValue: 1}, scaleType: UNIT_LOG_SCALE}
  - {parameterId: layers, integerValueSpec: {minValue: 1, maxValue: "4"}}
  - {parameterId: width, discreteValueSpec: {values: [16, 2.5]}}
trialJobSpec:
  workerPoolSpecs: [{replicaCount: 1, containerSpec: {imageUri: a}}]
"""


def pool(text: str) -> str:
    return f"workerPoolSpecs: [{{{text}}}]"


def args(text: str) -> str:
    return pool(f"containerSpec: {{args: [{text}]}}")


ALIAS_BOMB = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    + [f"{name}: &{name} [{', '.join([f'*{alias}'] * 10)}]" for alias, name in pairwise("abcdef")]
)

# What is wrong, the file, and words that its one sentence must hold.
MALFORMED = [
    # not a document
    ("empty", "", ["is empty; write the workerPoolSpecs"]),
    ("only comments", "# to do\n", ["is empty"]),
    ("text", "hello", ["must be a mapping, not text", "workerPoolSpecs"]),
    ("list of pools", "- replicaCount: 1", ["must be a mapping, not a list", "workerPoolSpecs"]),
    ("two documents", "network: a\n---\nnetwork: b\n", ["job.yaml:2: ", "second document"]),
    ("open bracket", "reservedIpRanges: [a,", ["job.yaml:1: "]),
    ("colon in text", "network: a: b", ["job.yaml:1: ", "mapping values are not allowed here"]),
    ("bad indentation", "network: a\n tensorboard: b\n", ["job.yaml:2: "]),
    ("tab", "scheduling:\n\ttimeout: 3600s", ["job.yaml:2: ", "tab", "spaces"]),
    ("tab in JSON", '{\n\t"network": "a"}', ["job.yaml:2: ", "tab", "spaces"]),
    ("control character", "network: a\x01", ["not valid YAML", "#x0001"]),
    ("template left in", "network: {{ network }}", ["job.yaml:1: ", "a key must be a plain name", "quote"]),
    ("undefined alias", "network: *missing", ["job.yaml:1: ", "undefined alias 'missing'"]),
    ("alias in a circle", "workerPoolSpecs: &pools [*pools]", ["job.yaml:1: ", "alias", "inside"]),
    ("alias bomb", ALIAS_BOMB, ["job.yaml:5: ", "aliases", "100,000"]),
    (
        "too many values",
        "reservedIpRanges: [" + "a, " * 100_001,
        ["job.yaml:1: ", "contains more than 100,000 values; no"],
    ),
    ("merge of text", "scheduling: {<<: fast}", ["job.yaml:1: ", "<<", "mappings"]),
    ("merge of a list as key", "scheduling: {<<: {[a]: b}}", ["job.yaml:1: ", "a key must be a plain name"]),
    ("merge twice", "scheduling: {<<: {}, <<: {}}", ["job.yaml:1: ", 'the key "<<" occurs in lines 1 and 1']),
    ("nested too deeply", "network: " + "[" * 5000, ["nested too deeply"]),
    # keys
    ("key twice", "network: a\nnetwork: b\n", ['the key "network"', "lines 1 and 2"]),
    ("key often", "network: a\n" * 5, ['"network" occurs in lines 1 and 2 and 3 and 2 more']),
    (
        "inner key twice",
        pool("replicaCount: 1, replicaCount: 2"),
        ["workerPoolSpecs[0]", '"replicaCount"', "lines 1"],
    ),
    ("misspelt key", "workerPoolSpec: []", ['unknown key "workerPoolSpec"', "did you mean workerPoolSpecs?"]),
    (
        "strange key",
        "color: red",
        ['unknown key "color"', "use one of persistentResourceId, workerPoolSpecs"],
    ),
    ("number as key", "1: a", ['unknown key "1"']),
    (
        "key of v1beta1",
        "workerPoolSpecs: [{machineSpec: {minGpuDriverVersion: '535'}}]",
        ["workerPoolSpecs[0].machineSpec: the field minGpuDriverVersion exists only in v1beta1", "gcloud beta"],
    ),
    (
        "misspelt inner key",
        pool("machineSpec: {machinType: n1-standard-4}"),
        ['workerPoolSpecs[0].machineSpec: unknown key "machinType"; did you mean machineType?'],
    ),
    ("wrong case", pool("replicacount: 1"), ["workerPoolSpecs[0]", "did you mean replicaCount?"]),
    ("snake case", "worker_pool_specs: []", ['"worker_pool_specs"', "write workerPoolSpecs", "gcloud"]),
    (
        "inner snake case",
        pool("containerSpec: {image_uri: a}"),
        ["workerPoolSpecs[0].containerSpec", "write imageUri"],
    ),
    (
        "two tasks",
        pool("containerSpec: {imageUri: a}, pythonPackageSpec: {pythonModule: b}"),
        ["workerPoolSpecs[0]: containerSpec and pythonPackageSpec can't be set together"],
    ),
    # other resources
    ("CustomJob", "displayName: a\njobSpec: {network: a}", ["CustomJob", "to the top level"]),
    ("pipeline", "trainingTaskDefinition: a\n", ["TrainingPipeline", "which isn't supported"]),
    # lists, mappings, nothing
    (
        "pools as mapping",
        "workerPoolSpecs: {replicaCount: 1}",
        [
            "workerPoolSpecs: must be a list, not a mapping; "
            "begin the item with a dash, because only gcloud accepts an item without one"
        ],
    ),
    ("pools missing", "workerPoolSpecs:\n", ["workerPoolSpecs: must be a list, not nothing"]),
    ("null pool", "workerPoolSpecs: [null]", ["workerPoolSpecs[0]: has no value", "write {}"]),
    (
        "pool as text",
        "workerPoolSpecs: [chief]",
        ["workerPoolSpecs[0]: must be a mapping, not text", "machineSpec"],
    ),
    ("args as text", pool("containerSpec: {args: --fast}"), ["containerSpec.args: must be a list, not text"]),
    ("image as list", pool("containerSpec: {imageUri: [a]}"), ["imageUri: must be text, not a list"]),
    ("nothing", "serviceAccount:\n", ["serviceAccount: has no value", "remove the field"]),
    # text
    (
        "number in args",
        args("--steps, 100"),
        ['args[1]: must be text, but 100 is a number; quote it: "100"'],
    ),
    ("fraction in args", args("0.0010"), ['quote it: "0.0010"']),
    ("time in args", args("10:30"), ['quote it: "10:30"']),
    ("boolean in args", args("yes"), ["yes is a boolean", 'quote it: "yes"']),
    *(
        (f"{text}, which gcloud reads so", args(text), [f"must be text, but {text} is {kind}", f'quote it: "{text}"'])
        for text, kind in {"1e-3": "a number", "1e3": "a number", "y": "a boolean", "N": "a boolean"}.items()
    ),
    ("date in args", args("2026-02-30"), ["is a date", 'quote it: "2026-02-30"']),
    ("nothing in args", args("~"), ["args[0]: has no value"]),
    ("tag", args("!!python/name:os.system x"), ["special value", 'quote it: "x"']),
    ("tagged mapping", "scheduling: !!set {timeout}", ["job.yaml:1: ", "tag", "remove the tag"]),
    ("number in env", pool("containerSpec: {env: [{name: A, value: 1}]}"), ["env[0].value", 'quote it: "1"']),
    (
        "env as mapping",
        pool("containerSpec: {env: {A: b}}"),
        ["containerSpec.env: must be a list, not a mapping; begin each item with a dash"],
    ),
    ("half a character", r'network: "\ud83d"', ["network", "surrogate"]),
    # numbers, booleans, enums, durations
    ("fraction of a replica", pool("replicaCount: 1.5"), ["replicaCount: must be a whole number", "not 1.5"]),
    ("replicas in words", pool("replicaCount: two"), ["replicaCount: must be a whole number", 'not "two"']),
    ("octal", pool("replicaCount: 010"), ["must be a whole number", "not 010"]),
    ("too large", pool("diskSpec: {bootDiskSizeGb: 9999999999}"), ["diskSpec.bootDiskSizeGb", "32 bits"]),
    ("enormous", pool(f"replicaCount: {'9' * 5000}"), ["replicaCount", "64 bits"]),
    ("quoted boolean", 'enableWebAccess: "true"', ["enableWebAccess: must be a boolean", "without quotes"]),
    ("number for boolean", "enableWebAccess: 1", ["enableWebAccess: must be a boolean, not 1"]),
    ("yes", "enableWebAccess: yes", ["not yes", "write true or false"]),
    (
        "misspelt accelerator",
        pool("machineSpec: {acceleratorType: NVIDIA_TSELA_T4}"),
        ['machineSpec.acceleratorType: unknown value "NVIDIA_TSELA_T4"; did you mean NVIDIA_TESLA_T4?'],
    ),
    ("gcloud's spelling", pool("machineSpec: {acceleratorType: nvidia-l4}"), ["did you mean NVIDIA_L4?"]),
    ("strategy", "scheduling: {strategy: CHEAP}", ['"CHEAP"', "use one of STANDARD", "SPOT"]),
    ("unknown enum number", "scheduling: {strategy: 999}", ["scheduling.strategy: unknown value 999"]),
    ("enum as list", "scheduling: {strategy: [SPOT]}", ["scheduling.strategy: unknown value a list"]),
    ("timeout as number", "scheduling: {timeout: 3600}", ["scheduling.timeout", "not 3600", 'write "3600s"']),
    ("timeout in hours", "scheduling: {timeout: 1h}", ["scheduling.timeout", 'not "1h"', 'write "3600s"']),
    ("negative timeout", "scheduling: {timeout: -1s}", ["scheduling.timeout", 'not "-1s"']),
    ("timeout as mapping", "scheduling: {timeout: {seconds: 1}}", ["scheduling.timeout", "not a mapping"]),
    ("endless timeout", "scheduling: {timeout: 999999999999999s}", ["scheduling.timeout", "seconds"]),
]


def write(tmp_path: Path, text: str, name: str = "job.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def faults_of(text: str) -> tuple[str, ...]:
    try:
        parse(text, "job.yaml")
    except FaultError as error:
        return tuple(str(error).splitlines())
    return ()


def refusal(path: Path) -> FaultError:
    with pytest.raises(FaultError) as caught:
        load(path)
    return caught.value


def case(name: str, text: str, words: list[str]) -> Any:
    """A huge file, which takes seconds to read, is for the proofs."""
    return pytest.param(text, words, id=name, marks=[pytest.mark.proof] if len(text) > 100_000 else [])


@pytest.mark.parametrize(("text", "words"), [case(*row) for row in MALFORMED])
def test_a_malformed_job_is_refused_in_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    (sentence,) = str(refusal(path)).splitlines()
    assert re.match(rf"{path}(:\d+)?: ", sentence)
    assert "; " in sentence  # the cure
    assert [word for word in words if word not in sentence] == []


def test_a_good_job_is_the_real_protobuf(tmp_path: Path) -> None:
    job = load(write(tmp_path, GOOD, "reduction-server.yaml"))
    assert isinstance(job, Job)
    assert job == Job(job.path, "reduction-server", parse(GOOD, ""))
    chief, workers, reducers = job.spec.worker_pool_specs
    assert chief.machine_spec.accelerator_type == AcceleratorType.NVIDIA_TESLA_A100
    assert list(workers.container_spec.args) == ["--steps", "100"]
    assert (chief.replica_count, workers.replica_count, reducers.replica_count) == (1, 3, 13)
    assert job.spec.scheduling.timeout == timedelta(hours=1)
    assert job.spec.scheduling.strategy == Scheduling.Strategy.SPOT
    assert job.spec.scheduling.restart_job_on_worker_restart


def test_pools_are_known_by_what_they_do() -> None:
    job = Job(Path("job.yaml"), "job", parse(GOOD, "job.yaml"))
    assert [(pool.index, pool.trains, pool.reduces) for pool in job.pools] == [
        (0, True, False),
        (1, True, False),
        (2, False, True),
    ]
    assert (job.chief, job.training_pools, job.reducers) == (job.pools[0], job.pools[:2], job.pools[2:])


def test_a_pool_answers_what_is_often_asked() -> None:
    chief, _, reducers = Job(Path("job.yaml"), "job", parse(GOOD, "job.yaml")).pools
    assert (chief.machine_type, chief.accelerator, chief.accelerator_count) == (
        "a2-highgpu-8g",
        "NVIDIA_TESLA_A100",
        8,
    )
    assert (reducers.machine_type, reducers.accelerator, reducers.accelerator_count) == (
        "n1-highcpu-16",
        "",
        0,
    )
    assert [(variable.name, variable.value) for variable in chief.env] == [("SEED", "7")]
    assert chief.at(chief.task, "args") == "workerPoolSpecs[0].containerSpec.args"


def test_an_empty_pool_keeps_its_position_and_holds_nothing() -> None:
    text = "workerPoolSpecs: [{replicaCount: 1}, {}, {replicaCount: 2}]"
    job = Job(Path("job.yaml"), "job", parse(text, "job.yaml"))
    assert len(job.spec.worker_pool_specs) == 3
    assert [pool.index for pool in job.pools] == [0, 2]


def test_json_is_read_too(tmp_path: Path) -> None:
    body = {"workerPoolSpecs": [{"replicaCount": "3", "machineSpec": {"acceleratorType": 5}}]}
    job = load(write(tmp_path, json.dumps(body), "job.json"))
    assert isinstance(job, Job)
    (pool,) = job.pools
    assert (pool.replica_count, pool.accelerator) == (3, "NVIDIA_TESLA_T4")  # both as the SDK sends them


def test_a_pool_may_merge_another_and_override_it() -> None:
    text = """
workerPoolSpecs:
- &pool {replicaCount: 1, machineSpec: {machineType: n1-standard-8}}
- {<<: *pool, replicaCount: 3}
- {<<: [{replicaCount: 5}, *pool]}
"""
    pools = Job(Path("job.yaml"), "job", parse(text, "")).pools
    assert [pool.replica_count for pool in pools] == [1, 3, 5]
    assert {pool.machine_type for pool in pools} == {"n1-standard-8"}


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("machineType: a2", "machinType: a2").replace('"100"', "100").replace("3600s", "1h")
    error = refusal(write(tmp_path, text))
    assert len(error.findings) == 5  # pools 0 and 1 share a machine and a task
    assert len(str(error).splitlines()) == 5


def test_the_next_file_name_is_offered_for_a_missing_one(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "reduction-server.yaml")
    assert "did you mean reduction-server.yaml?" in str(refusal(tmp_path / "reduction_servr.yaml"))
    assert "the file doesn't exist; check the filename" in str(refusal(tmp_path / "nowhere" / "job.yaml"))
    (tmp_path / "workers.yaml").touch()
    assert "the file doesn't exist; check the filename" in str(refusal(tmp_path / "nothere.yaml"))
    assert "the file doesn't exist; did you mean workers.yaml?" in str(refusal(tmp_path / "worker.yml"))


def test_what_is_no_small_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "utf16.yaml").write_bytes(GOOD.encode("utf-16"))
    write(tmp_path, "# " + "x" * 2**20, "large.yaml")
    assert "this path is a folder" in str(refusal(tmp_path))
    assert "can't be read" in str(refusal(write(tmp_path, GOOD) / "job.yaml"))
    assert "isn't valid UTF-8" in str(refusal(tmp_path / "utf16.yaml"))
    assert "larger than 1 MiB" in str(refusal(tmp_path / "large.yaml"))


DAMAGE = [" ", "-", ":", "{", "]", "&a ", "*a", "<<: ", "\t", '"', "!!int ", "? "]


def test_damaged_files_are_read_or_refused_in_sentences_and_nothing_else() -> None:
    source = random.Random(2026)
    for _ in range(150):
        start = source.randrange(len(GOOD))
        text = GOOD[:start] + source.choice(DAMAGE) + GOOD[start + source.randrange(4) :]
        assert all(re.match(r"job\.yaml(:\d+)?: ", fault) and "\n" not in fault for fault in faults_of(text))


def test_a_tuning_job_is_read_whole_with_the_job_of_its_trials(tmp_path: Path) -> None:
    job = load(write(tmp_path, TUNING, "tuning.yaml"))
    assert isinstance(job, TuningJob)
    assert (job.name, job.spec.max_trial_count) == ("search", 6)
    rate, layers, width = job.spec.study_spec.parameters
    assert (rate.double_value_spec.min_value, rate.double_value_spec.max_value) == (1e-4, 1.0)
    assert rate.scale_type == StudySpec.ParameterSpec.ScaleType.UNIT_LOG_SCALE
    assert layers.integer_value_spec.max_value == 4
    assert list(width.discrete_value_spec.values) == [16.0, 2.5]
    assert job.trial_job == Job(job.path, "search", CustomJobSpec(job.spec.trial_job_spec))
    assert [pool.replica_count for pool in job.trial_job.pools] == [1]


def test_a_tuning_job_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    assert load(write(tmp_path, "studySpec: {}", "tuning.yaml")).name == "tuning"


def test_the_places_of_a_tuning_jobs_faults_begin_at_its_top(tmp_path: Path) -> None:
    path = write(tmp_path, TUNING.replace("minValue: 1.0e-4", "minValue: low").replace("imageUri", "imageURL"))
    assert str(refusal(path)).splitlines() == [
        f'{path}:7: studySpec.parameters[0].doubleValueSpec.minValue: must be a number, not "low"; '
        "write digits, such as 0.001 or 1.0e-3",
        f'{path}:11: trialJobSpec.workerPoolSpecs[0].containerSpec: unknown key "imageURL"; did you mean imageUri?',
    ]


def from_json(text: str, kind: type = HyperparameterTuningJob) -> dict[str, object]:
    """What a JSON body says, after a round through the message."""
    return as_json(read(strict_yaml.from_json(text), kind))


def body_faults(text: str, kind: type = HyperparameterTuningJob) -> list[tuple[str, str]]:
    with pytest.raises(FaultError) as caught:
        from_json(text, kind)
    assert str(caught.value).splitlines() == [str(finding) for finding in caught.value.findings]
    return [(finding.place, finding.sentence) for finding in caught.value.findings]


def parameter(text: str) -> str:
    return f'{{"studySpec": {{"parameters": [{text}]}}}}'


# As the SDK and gcloud send them, and what the API answers with.
BODIES = [
    ('{"labels": {"team": "vision"}}', {"labels": {"team": "vision"}}),
    ('{"maxTrialCount": 4, "state": 3}', {"maxTrialCount": 4, "state": "JOB_STATE_RUNNING"}),
    (
        parameter('{"integerValueSpec": {"minValue": "1", "maxValue": 9}}'),
        {"studySpec": {"parameters": [{"integerValueSpec": {"minValue": "1", "maxValue": "9"}}]}},
    ),
    (
        parameter('{"doubleValueSpec": {"minValue": -1.5e-3, "maxValue": "1e2"}}'),
        {"studySpec": {"parameters": [{"doubleValueSpec": {"minValue": -0.0015, "maxValue": 100.0}}]}},
    ),
    (
        '{"studySpec": {"studyStoppingConfig": {"shouldStopAsap": true, "maxNumTrials": 4}}}',
        {"studySpec": {"studyStoppingConfig": {"shouldStopAsap": True, "maxNumTrials": 4}}},
    ),
    (
        parameter('{"integerValueSpec": {"maxValue": 9223372036854775807}}'),
        {"studySpec": {"parameters": [{"integerValueSpec": {"maxValue": "9223372036854775807"}}]}},
    ),
    (
        parameter('{"doubleValueSpec": {"minValue": 1.7976931348623157e308}}'),
        {"studySpec": {"parameters": [{"doubleValueSpec": {"minValue": 1.7976931348623157e308}}]}},
    ),
    ('{"createTime": "2026-11-20T10:00:00.5Z"}', {"createTime": "2026-11-20T10:00:00.500Z"}),
    ('{"error": {"code": 3, "message": "no"}}', {"error": {"code": 3, "message": "no"}}),
    (
        '{"trials": [{"parameters": [{"value": 0.5}, {"value": "adam"}, {"value": [null, {"a": true}]}]}]}',
        {"trials": [{"parameters": [{"value": 0.5}, {"value": "adam"}, {"value": [None, {"a": True}]}]}]},
    ),
]


@pytest.mark.parametrize(("text", "answer"), BODIES)
def test_a_body_is_what_protobufs_json_takes_it_for(text: str, answer: dict[str, object]) -> None:
    assert from_json(text) == answer


MALFORMED_BODIES = [
    ("", "", "line 1: not valid JSON"),
    ('{"labels":\n {,}}', "", "line 2: not valid JSON"),
    ("{} {}", "", "not valid JSON: Extra data"),
    ("[]", "", "must be a mapping, not a list; its keys are name"),
    ('{"maxTrialCount": NaN}', "", "NaN isn't a number in JSON"),
    ('{"maxTrialCount": -Infinity}', "", "-Infinity isn't a number in JSON"),
    ('{"displayName": "\\ud800"}', "", "half of a character"),
    ('{"\\udfff": 1}', "", "half of a character"),
    ("[" * 9_000, "", "nested too deeply"),
    ('{"labels": ' * 9_000, "", "nested too deeply"),
    ("[" * 100_000, "", "contains more than 10,000 values; no job needs that many"),
    ('{"displayName": "a", "displayName": "b"}', "", 'the key "displayName" occurs 2 times; keep one'),
    ('{"labels": {"a": "b", "a": "c"}}', "labels", 'the key "a" occurs 2 times'),
    ('{"labels": {"a": 1}}', "labels.a", 'must be text, but 1 is a number; quote it: "1"'),
    ('{"labels": ["a"]}', "labels", "must be a mapping, not a list"),
    ('{"labels": null}', "labels", "must be a mapping, not nothing"),
    ('{"maxTrialCount": null}', "maxTrialCount", "has no value"),
    ('{"maxTrialCount": 1.5}', "maxTrialCount", "must be a whole number"),
    (f'{{"maxTrialCount": {"9" * 5000}}}', "maxTrialCount", "must be a whole number"),
    ('{"state": 99}', "state", "unknown value 99"),
    ('{"createTime": "yesterday"}', "createTime", 'write a time such as "2026-11-20T15:30:00Z"'),
    ('{"createTime": "2026-99-20T15:30:00Z"}', "", "createTime"),
    ('{"createTime": 5}', "createTime", "must be a time, not 5"),
    ('{"error": {"details": [{"@type": "x"}]}}', "error.details[0]", "only the service sets this field"),
    ('{"trials": [{"parameters": [{"value": [1e400]}]}]}', "trials[0].parameters[0].value[0]", "must be a number"),
    (
        parameter('{"doubleValueSpec": {"minValue": "NaN"}}'),
        "studySpec.parameters[0].doubleValueSpec.minValue",
        'must be a number, not "NaN"',
    ),
    (
        parameter('{"doubleValueSpec": {"maxValue": 1e999}}'),
        "studySpec.parameters[0].doubleValueSpec.maxValue",
        "must be a number, not 1e999",
    ),
    (
        parameter(f'{{"doubleValueSpec": {{"maxValue": -1e{"9" * 40}}}}}'),
        "studySpec.parameters[0].doubleValueSpec.maxValue",
        "must be a number, not -1e999",
    ),
    ('{"parallelTrialCount": 2147483648}', "parallelTrialCount", "a whole number of at most 32 bits"),
    (
        parameter('{"integerValueSpec": {"maxValue": 9223372036854775808}}'),
        "studySpec.parameters[0].integerValueSpec.maxValue",
        "a whole number of at most 64 bits",
    ),
    (
        '{"studySpec": {"studyStoppingConfig": {"shouldStopAsap": 1}}}',
        "studySpec.studyStoppingConfig.shouldStopAsap",
        "must be a boolean",
    ),
    (
        '{"studySpec": {"medianAutomatedStoppingSpec": {}, "decayCurveStoppingSpec": {}}}',
        "studySpec",
        "can't be set together",
    ),
]


@pytest.mark.parametrize(("text", "place", "words"), MALFORMED_BODIES, ids=range(len(MALFORMED_BODIES)))
def test_a_malformed_body_is_refused_with_the_place_of_its_field(text: str, place: str, words: str) -> None:
    ((where, sentence),) = body_faults(text)
    assert where == place
    assert words in sentence
    assert "; " in sentence


def test_a_body_gives_the_faults_of_all_its_fields_at_once() -> None:
    faults = body_faults('{"displayname": "a", "jobSpec": {"scheduling": {"timeout": 5}}}', CustomJob)
    assert faults == [
        ("", 'unknown key "displayname"; did you mean displayName?'),
        ("jobSpec.scheduling.timeout", 'must be seconds with the suffix s, not 5; write "5s"'),
    ]


def test_yaml_and_json_are_read_alike() -> None:
    message = read(strict_yaml.from_yaml(TUNING), HyperparameterTuningJob)
    again = strict_yaml.from_json(json.dumps(as_json(message)))
    assert read(again, HyperparameterTuningJob) == message


@pytest.mark.parametrize("depth", [10, 20, 40, 60, 90, 120, 200, 300])
def test_what_is_nested_too_deeply_is_refused_wherever_the_limit_lies(depth: int) -> None:
    branch = '{"conditionalParameterSpecs": [{"parameterSpec": ' * depth + "{}" + "}]}" * depth
    inputs = '{"trainingTaskInputs": ' + '{"a": [' * depth + "1" + "]}" * depth + "}"
    for text, kind in ((parameter(branch), HyperparameterTuningJob), (inputs, TrainingPipeline)):
        assert len(nesting_faults(text, kind)) <= (depth > 10)


def nesting_faults(text: str, kind: type) -> tuple[Finding, ...]:
    try:
        from_json(text, kind)
    except FaultError as error:
        return error.findings
    return ()


def test_a_body_with_thousands_of_values_is_read_and_of_its_faults_the_first_are_told() -> None:
    labels = {f"label-{number}": "x" * 20 for number in range(9_000)}
    assert from_json(json.dumps({"labels": labels})) == {"labels": labels}
    assert len(body_faults(json.dumps(labels))) == 51  # nobody reads more

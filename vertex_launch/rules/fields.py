"""Every field that a job file can have, with the rules that look at it.

A release of google-cloud-aiplatform with a new field fails tests/launch/test_fields.py until it has a line here.
"""

from collections.abc import Mapping

from google.cloud.aiplatform_v1 import types
from google.protobuf.descriptor import Descriptor

from vertex_launch.proto_validation import WELL_KNOWN, item

Line = tuple[str, ...] | str  # the codes of rules, or words where there is no rule

PACKAGE = "google.cloud.aiplatform.v1."
FORM = "no rule but `form`: nothing more is documented"
OUTPUT = "written by Vertex AI alone"
HERE = "not a job file's; the local Vertex checks requests"
BELOW = "its own fields are below"
PROGRAM = (
    *("placeholder", "launcher-machines", "launcher-gpus", "trial-flags", "image-file", "env-unset", "reducer-command"),
    *("reducer-backend", "command-letters"),
)
FLAGS = (
    "flag-unknown",
    "flag-value",
    "flag-compile",
    "flags-differ",
    "batch-small",
    "batch-uneven",
    "parameter-unknown",
)
ENV = ("env-count", "env-repeated", "placeholder")
CONDITION = ("study-parameters",)

FIELDS: Mapping[str, Mapping[str, Line]] = {
    "CustomJobSpec": {
        "persistentResourceId": ("persistent-name", "persistent-reservation", "persistent-strategy"),
        "workerPoolSpecs": ("chief-count", "pool-count", "pool-gap", "pool-trailing", "tpu-alone", "trial-replicas"),
        "scheduling": BELOW,
        "serviceAccount": ("account-name", "tensorboard-account"),
        "network": ("resource-name", "mount-network"),
        "reservedIpRanges": ("ip-ranges",),
        "pscInterfaceConfig": BELOW,
        "baseOutputDirectory": ("output-missing", "spot-output"),
        "protectedArtifactLocationId": ("artifact-location",),
        "tensorboard": ("tensorboard-name", "tensorboard-region", "tensorboard-account"),
        "enableWebAccess": FORM,
        "enableDashboardAccess": FORM,
        "experiment": ("resource-name",),
        "experimentRun": ("resource-name",),
        "models": ("resource-name",),
    },
    "WorkerPoolSpec": {
        "containerSpec": ("pool-task",),
        "pythonPackageSpec": ("pool-task",),
        "machineSpec": ("flex-start-machines", "reducer-fabric", "reducer-bypassed", "reducer-gain"),
        "replicaCount": ("chief-count", "pool-replicas", "evaluator-count", "reducer-count", "reducer-machines"),
        "nfsMounts": ("mount-network",),
        "lustreMounts": BELOW,
        "diskSpec": BELOW,
    },
    "ContainerSpec": {
        "imageUri": (
            *("task-field", "image-name", "image-differs", "image-tag", "image-cuda", "image-without-cuda"),
            *("image-version", "prebuilt-unknown", "prebuilt-ended", "prebuilt-tag", "reducer-pool", "reducer-image"),
            *("reducer-region", "reducer-plugin", "trial-reducers"),
        ),
        "command": PROGRAM,
        "args": (*PROGRAM, *FLAGS),
        "env": ENV,
    },
    "PythonPackageSpec": {
        "executorImageUri": ("task-field", "executor-foreign", "image-name", "prebuilt-unknown", "prebuilt-ended"),
        "packageUris": ("task-field", "package-count", "package-address"),
        "pythonModule": ("task-field", "module-name"),
        "args": ("placeholder", "command-letters", *FLAGS),
        "env": ENV,
    },
    "EnvVar": {"name": ("env-name", "env-repeated"), "value": ("env-apostrophe", "placeholder", "env-unset")},
    "MachineSpec": {
        "machineType": ("pool-machine", "machine-unknown"),
        "acceleratorType": (
            *("accelerator-fit", "accelerator-retired", "region-accelerator", "flex-start-accelerator"),
            *("reducer-accelerator", "reducer-gpus"),
        ),
        "acceleratorCount": ("accelerator-fit", "gpu-partition"),
        "gpuPartitionSize": ("gpu-partition",),
        "tpuTopology": ("tpu-topology", "tpu-alone"),
        "reservationAffinity": ("reservation-field", "flex-start-reservation", "persistent-reservation"),
    },
    "ReservationAffinity": dict.fromkeys(("reservationAffinityType", "key", "values"), ("reservation-field",)),
    "DiskSpec": {"bootDiskType": ("disk-type",), "bootDiskSizeGb": ("disk-size",)},
    "NfsMount": {
        "server": ("mount-field", "mount-path"),
        "path": ("mount-field", "mount-path"),
        "mountPoint": ("mount-field", "mount-point"),
    },
    "LustreMount": {
        **dict.fromkeys(("instanceIp", "volumeHandle", "filesystem"), ("mount-field",)),
        "mountPoint": ("mount-field", "mount-point"),
    },
    "Scheduling": {
        "timeout": ("timeout-missing", "timeout-zero", "timeout-short", "flex-start-timeout"),
        "restartJobOnWorkerRestart": ("restart-alone", "restart-overridden"),
        "strategy": ("strategy-deprecated", "flex-start-machines", "persistent-strategy", "spot-output"),
        "disableRetries": ("restart-overridden",),
        "maxWaitDuration": ("wait-unread",),
    },
    "PscInterfaceConfig": {"networkAttachment": ("mount-network",), "dnsPeeringConfigs": ("dns-peering",)},
    "DnsPeeringConfig": dict.fromkeys(("domain", "targetProject", "targetNetwork"), ("dns-peering",)),
    "GcsDestination": {"outputUriPrefix": ("output-folder", "output-shared", "bucket-differs", "placeholder")},
    "HyperparameterTuningJob": {
        "displayName": ("search-name",),
        "studySpec": BELOW,
        "maxTrialCount": ("study-counts", "trial-parallel"),
        "parallelTrialCount": ("study-counts", "trial-parallel"),
        "maxFailedTrialCount": ("study-counts",),
        "trialJobSpec": BELOW,
        "labels": ("label",),
        "encryptionSpec": BELOW,
        **dict.fromkeys(("name", "trials", "state", "createTime", "startTime", "endTime", "updateTime"), OUTPUT),
        **dict.fromkeys(("error", "satisfiesPzs", "satisfiesPzi"), OUTPUT),
    },
    "EncryptionSpec": {"kmsKeyName": ("key-name", "key-region")},
    "StudySpec": {
        "metrics": ("study-metrics",),
        "parameters": ("study-parameters",),
        "algorithm": ("study-parameters", "trial-parallel"),
        "convexAutomatedStoppingSpec": ("study-local",),
        "decayCurveStoppingSpec": ("study-local",),
        "medianAutomatedStoppingSpec": ("study-local",),
        "studyStoppingConfig": ("study-local",),
        "observationNoise": FORM,
        "measurementSelectionType": FORM,
    },
    "StudySpec.MetricSpec": {
        "metricId": ("study-metrics", "metric-unknown"),
        "goal": FORM,
        "safetyConfig": ("study-local",),
    },
    "StudySpec.MetricSpec.SafetyMetricConfig": dict.fromkeys(("safetyThreshold", "desiredMinSafeTrialsFraction"), FORM),
    "StudySpec.ParameterSpec": {
        "parameterId": ("study-parameters", "parameter-unknown"),
        "scaleType": ("study-parameters",),
        "conditionalParameterSpecs": CONDITION,
        **dict.fromkeys(("doubleValueSpec", "integerValueSpec"), ("study-parameters", "study-local")),
        **dict.fromkeys(("categoricalValueSpec", "discreteValueSpec"), ("study-parameters",)),
    },
    **{
        f"StudySpec.ParameterSpec.{kind}ValueSpec": {
            **dict.fromkeys(("minValue", "maxValue"), ("study-parameters", "study-local")),
            "defaultValue": FORM,
        }
        for kind in ("Double", "Integer")
    },
    **{
        f"StudySpec.ParameterSpec.{kind}ValueSpec": {"values": ("study-parameters",), "defaultValue": FORM}
        for kind in ("Categorical", "Discrete")
    },
    "StudySpec.ParameterSpec.ConditionalParameterSpec": dict.fromkeys(
        ("parentDiscreteValues", "parentIntValues", "parentCategoricalValues", "parameterSpec"), CONDITION
    ),
    **{
        f"StudySpec.ParameterSpec.ConditionalParameterSpec.{kind}ValueCondition": {"values": CONDITION}
        for kind in ("Discrete", "Int", "Categorical")
    },
    "StudySpec.DecayCurveAutomatedStoppingSpec": {"useElapsedDuration": FORM},
    "StudySpec.MedianAutomatedStoppingSpec": {"useElapsedDuration": FORM},
    "StudySpec.ConvexAutomatedStoppingSpec": dict.fromkeys(
        (
            *("maxStepCount", "minStepCount", "minMeasurementCount", "learningRateParameterName"),
            *("useElapsedDuration", "updateAllStoppedTrials"),
        ),
        FORM,
    ),
    "StudySpec.StudyStoppingConfig": dict.fromkeys(
        (
            *("shouldStopAsap", "minimumRuntimeConstraint", "maximumRuntimeConstraint", "minNumTrials"),
            *("maxNumTrials", "maxNumTrialsNoProgress", "maxDurationNoProgress"),
        ),
        FORM,
    ),
    "StudyTimeConstraint": dict.fromkeys(("maxDuration", "endTime"), FORM),
    "TrainingPipeline": {
        **dict.fromkeys(("displayName", "inputDataConfig", "trainingTaskDefinition", "trainingTaskInputs"), HERE),
        **dict.fromkeys(("modelToUpload", "modelId", "parentModel", "labels", "encryptionSpec"), HERE),
        **dict.fromkeys(("name", "trainingTaskMetadata", "state", "error", "createTime", "startTime"), OUTPUT),
        **dict.fromkeys(("endTime", "updateTime"), OUTPUT),
    },
}


def of_api() -> dict[str, list[str]]:
    """Return the messages of which job files consist, and TrainingPipeline, each with the names of its fields."""
    kinds = (types.CustomJobSpec, types.HyperparameterTuningJob, types.TrainingPipeline)
    messages: list[Descriptor] = [kind.pb(kind()).DESCRIPTOR for kind in kinds]
    for message in messages:  # the list grows in the loop
        lines = FIELDS.get(_name(message), {})
        inner = [
            item(field).message_type for field in message.fields if lines.get(field.json_name) not in (OUTPUT, HERE)
        ]
        new = [one for one in inner if one and one not in messages and not one.full_name.startswith(WELL_KNOWN)]
        messages += dict.fromkeys(new)
    return {_name(message): [field.json_name for field in message.fields] for message in messages}


def _name(message: Descriptor) -> str:
    return str(message.full_name).removeprefix(PACKAGE)


def table() -> str:
    """Every field of the API's messages with its rules, in Markdown."""
    parts = []
    for message, fields in of_api().items():
        parts += ["", f"### {message}", "", "| Field | Rules |", "|---|---|"]
        parts += [f"| {field} | {_words(FIELDS[message][field])} |" for field in fields]
    return "\n".join(parts)


def _words(line: Line) -> str:
    return line if isinstance(line, str) else ", ".join(f"`{code}`" for code in line)

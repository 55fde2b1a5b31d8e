"""Rules for the images, packages, and environment variables of a job's pools."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import pairwise
from typing import NamedTuple

from vertex_launch.errors import Finding, Findings
from vertex_launch.job.contract import REFERENCE, expand, expanded
from vertex_launch.rules.placeholders import MARK_IN_NAME
from vertex_launch.rules.rule import Job, Pool, RuleContext, more, rule, rule_of_pool
from vertex_launch.settings import VARIABLE

RESTRICTED = "/vertex-ai-restricted/"  # the repository of the reduction server's image
OF_REDUCERS = "reducers"  # the image label that states whether NCCL in the image can use reducers
CPU = "-cpu"  # the suffix of the variant of the project's image without CUDA
CUDA = re.compile(r'^LABEL\s(?:.*\\\n)*.*\bcuda="?([0-9]+)([0-9.]*)', re.MULTILINE)
# Variables that the service sets in jobs with several replicas -> the values for a job with one replica.
OF_SEVERAL = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
# Source: github.com/distribution/reference, regexp.go: registry, path, tag, and digest.
_PART = "[a-z0-9]+(?:(?:[.]|__?|-+)[a-z0-9]+)*"
REFERENCE_TO_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@\w+:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
# The framework, the hardware, and the version in the name of a Google image. pytorch-xla is PyTorch for CPUs.
GOOGLES = re.compile(
    r"(?:[\w-]+-docker\.pkg\.dev/vertex-ai|gcr\.io/cloud-aiplatform|\S*deeplearning-platform-release)/\S*?"
    r"\b(pytorch|tf|sklearn|scikit-learn|xgboost)2?-(cpu|gpu|tpu|xla|cu[0-9]+)\.?([0-9]*-?[0-9]*)"
)
SET = re.compile("CLUSTER_SPEC|HOSTNAME|CLOUD_ML_.*|AIP_.*", re.DOTALL)  # the service sets these in every job
APOSTROPHE = re.compile(r"(?<!\\)(?:\\\\)*'")  # an apostrophe that no backslash escapes
MODULE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
FEWEST_LETTERS = 4  # fewer may be intended: a program such as [ also has operands of one letter
IMAGE = {"containerSpec": "containerSpec.imageUri", "pythonPackageSpec": "pythonPackageSpec.executorImageUri"}


def image_of(pool: Pool) -> str:
    return pool.spec.container_spec.image_uri or pool.spec.python_package_spec.executor_image_uri


def image_at(pool: Pool) -> str:
    """Return the location of the pool's image in the job."""
    return pool.at(IMAGE[pool.task])


def images(job: Job) -> Iterator[tuple[Pool, str]]:
    """Return each image and the first pool that runs it. The rules ignore other pools with the same image."""
    first = {image_of(pool): pool for pool in reversed(job.pools)}
    return ((pool, image) for image, pool in reversed(first.items()) if image)


def words(pool: Pool, context: RuleContext) -> list[tuple[str, str]]:
    """Return the words of a pool's command line, each with its location in the job.

    If the pool doesn't set a command, use the command that vertex.toml specifies for the image. Environment variables
    that Vertex AI sets aren't expanded.
    """
    command, env = pool.spec.container_spec.command, expanded(pool.env, {})
    usual = () if command else context.settings.commands.get(image_of(pool), ())
    said = [(f"command[{n}]", word) for n, word in enumerate(command)]
    said += [(f"args[{n}]", word) for n, word in enumerate(pool.args)]
    own = [(pool.at(pool.task, place), expand(word, env)) for place, word in said]
    return [(pool.at(pool.task), word) for word in usual] + own


class Flag(NamedTuple):
    """A command-line flag, with its location, its name in snake_case, and its value or the word after the flag."""

    place: str
    name: str
    value: str


def flags(program: Sequence[tuple[str, str]]) -> Iterator[Flag]:
    """Yield the flags in a command line. A flag has the form `--name value` or `--name=value`."""
    for (place, word), (_, follower) in pairwise([*program, ("", "")]):
        name, separator, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name:
            yield Flag(place, name.replace("-", "_"), value if separator else follower)


def prebuilt_name(context: RuleContext, image: str) -> str:
    """Return the name of a Google training image without its registry and tag. Return "" for all other images."""
    name, registries = untagged(image), context.catalog.prebuilt_registries
    return next((name.removeprefix(f"{one}/") for one in registries if name.startswith(f"{one}/")), "")


def is_ours(context: RuleContext, image: str) -> bool:
    """Return whether an image is the project's image (with any digest) or its variant without CUDA."""
    ours = context.settings.image
    return bool(ours) and (image in (ours, f"{ours}{CPU}") or image.startswith(f"{untagged(ours)}@sha256:"))


@rule("image-name", "error", "documented", "image-reference")
def image_named(job: Job, context: RuleContext) -> Findings:
    """An image name must be valid in a registry. The name must be lowercase and must not contain a protocol or template
    placeholders.
    Otherwise: Vertex AI rejects the job, or the replicas don't start."""
    for pool, image in images(job):
        if not REFERENCE_TO_IMAGE.fullmatch(image):
            mark = MARK_IN_NAME.search(image)
            cure = f"replace {mark[0]} with its value" if mark else "write REGISTRY/NAME:TAG in lowercase"
            yield Finding(image_at(pool), f'"{image}" isn\'t a valid image name', cure)


@rule("image-differs", "warning", "documented", "settings")
def image_ours(job: Job, context: RuleContext) -> Findings:
    """A job should use the project's image, which the settings specify.
    Otherwise: The job doesn't run the project's latest build, or the image doesn't exist."""
    ours, origin = context.settings.image, context.settings.origin("image")
    for pool, image in images(job) if ours else ():
        named = REFERENCE_TO_IMAGE.fullmatch(image)  # `image_named` reports others
        trains = named and pool.trains and pool.task == "containerSpec" and not pool.reduces
        if trains and not (is_ours(context, image) or prebuilt_name(context, image)):
            fault = f'"{image}" isn\'t the image that {origin} specifies'
            yield Finding(image_at(pool), fault, f"use {ours}, or change the image in {origin}")


@rule("image-tag", "warning", "inferred", "training-service")
def image_fixed(job: Job, context: RuleContext) -> Findings:
    """A custom image should have a fixed tag or a digest. The default tag `latest` refers to a different image after
    every push.
    Otherwise: If a replica restarts after a push, it runs different code from the other replicas."""
    for pool, image in images(job):
        googles = pool.reduces or RESTRICTED in image or prebuilt_name(context, image)
        if not (googles or "@" in image) and REFERENCE_TO_IMAGE.fullmatch(image) and _tag(image) in ("", "latest"):
            fault = 'the tag "latest" refers to a different image after every push'
            yield Finding(image_at(pool), fault, "use a fixed tag such as :1 or, preferably, a digest")


@rule_of_pool("image-cuda", "warning", "documented", "cuda-13", "dockerfile")
def image_has_code(pool: Pool, context: RuleContext) -> Findings:
    """The CUDA version of the project's image should support the GPUs of all pools. The `cuda` label in the Dockerfile
    specifies the CUDA version.
    Otherwise: Every replica fails at its first step with the error "no kernel image is available for execution on the
    device"."""
    label, image = CUDA.search(context.project.dockerfile), image_of(pool)
    newer = [version for version, kinds in context.catalog.cuda_dropped.items() if pool.accelerator in kinds]
    ours = is_ours(context, image) and not image.endswith(CPU)
    if label and ours and any(int(label[1]) >= version for version in newer):
        built = f"the project's Dockerfile builds this image with CUDA {label[1]}{label[2]}"
        fault = f"{built}, which doesn't support {pool.accelerator}"
        yield Finding(IMAGE[pool.task], fault, "build the image with CUDA 12.6, or use T4 or newer GPUs")


@rule("image-purpose", "warning", "inferred", "settings", "prebuilt-containers")
def image_fits(job: Job, context: RuleContext) -> Findings:
    """Pools with GPUs should run a training image with CUDA. Pools without GPUs should run a training image for CPUs.
    Otherwise: The job trains on CPUs while its GPUs are billed but idle, or the image can't train a model."""
    for pool, image in images(job):
        small, hardware = f"{context.settings.image}{CPU}", _kind(image)[1]
        with_gpus = [one for one in job.pools if one.accelerator and image_of(one) == image]
        if with_gpus and (hardware == "cpu" or image == small):
            cure = "use a GPU image, or use machines without GPUs" if hardware else f"use {context.settings.image}"
            yield Finding(image_at(with_gpus[0]), "the machine has GPUs, but this image doesn't contain CUDA", cure)
        if hardware == "gpu" and not with_gpus:
            yield Finding(
                image_at(pool), "this image is for GPUs, but the machine doesn't have any", "use an image for CPUs"
            )
        if hardware and "/prediction/" in image:
            cure = "use a training image, or your own image"
            yield Finding(image_at(pool), "this image is for prediction, not for training", cure)


@rule("prebuilt-unknown", "warning", "uncertain", "prebuilt-containers")
def prebuilt_listed(job: Job, context: RuleContext) -> Findings:
    """An image from Google's training registries should be on the documented list of training images.
    Otherwise: The replicas can't start, unless the image is newer than the list."""
    listed, today = context.catalog.prebuilt_images, context.project.today or date.min
    kinds = {name: _kind(f"{context.catalog.prebuilt_registries[0]}/{name}") for name in listed}
    for pool, image in images(job):
        name, kind = prebuilt_name(context, image), _kind(image)
        if name and name not in listed:
            same = next((one for one in kinds if kinds[one] == kind), "")
            current = [one for one, end in listed.items() if end >= today and kinds[one][:2] == kind[:2]]
            cure = f"use one of {', '.join(current)}" if current else "build your own image for a containerSpec"
            if same:
                ended = f" This image reached its end of availability on {listed[same]}, so build your own image"
                cure = f"did you mean {same}:latest?{'' if same in current else ended}"
            yield Finding(image_at(pool), f'"{name}" isn\'t on the documented list of training images', cure)


@rule("prebuilt-ended", "warning", "documented", "prebuilt-containers")
def prebuilt_available(job: Job, context: RuleContext) -> Findings:
    """A job should not use a Google training image after its end-of-availability date.
    Otherwise: Google might remove the image at any time. After that, replicas can't start."""
    for pool, image in images(job):
        end = context.catalog.prebuilt_images.get(prebuilt_name(context, image))
        if end and context.project.today and end < context.project.today:
            fault = f"this image reached its end of availability on {end}"
            yield Finding(image_at(pool), fault, "build your own image for a containerSpec")


@rule("prebuilt-tag", "warning", "documented", "prebuilt-containers")
def prebuilt_latest(job: Job, context: RuleContext) -> Findings:
    """A Google training image should have the tag `latest`, because Google doesn't support other tags.
    Otherwise: The replicas run an image that is no longer maintained, or they can't start."""
    for pool, image in images(job):
        name = prebuilt_name(context, image)
        if name in context.catalog.prebuilt_images and (_tag(image) != "latest" or "@" in image):
            yield Finding(
                image_at(pool), 'Google supports only the tag "latest" for this image', f"use {untagged(image)}:latest"
            )


@rule_of_pool("executor-foreign", "warning", "documented", "api-types")
def executor_prebuilt(pool: Pool, context: RuleContext) -> Findings:
    """A Python package should run in one of Google's training images.
    Otherwise: Vertex AI rejects the job, or runs the package in an image that might lack the package's dependencies."""
    image = pool.spec.python_package_spec.executor_image_uri
    if REFERENCE_TO_IMAGE.fullmatch(image) and not prebuilt_name(context, image):
        cure = f"use an image from {context.catalog.prebuilt_registries[0]}, or a containerSpec"
        yield Finding(IMAGE[pool.task], f"\"{image}\" isn't one of Google's training images", cure)


@rule_of_pool("package-count", "error", "documented", "api-types")
def packages_few(pool: Pool, context: RuleContext) -> Findings:
    """A pool can install at most 100 packages."""
    count, limit = len(pool.spec.python_package_spec.package_uris), context.catalog.limits.package_uris
    yield from more("pythonPackageSpec.packageUris", count, limit, "packages", "combine several packages into one")


@rule_of_pool("package-address", "error", "documented", "api-types")
def packages_in_buckets(pool: Pool, context: RuleContext) -> Findings:
    """A Python package must be stored in Cloud Storage, at gs://BUCKET/NAME."""
    for index, uri in enumerate(pool.spec.python_package_spec.package_uris):
        if not re.fullmatch(r"gs://[^/\s<>${}]+/\S+", uri):
            cure = "copy the package to a bucket and write gs://BUCKET/NAME"
            yield Finding(
                f"pythonPackageSpec.packageUris[{index}]", f'"{uri}" isn\'t the URI of an object in a bucket', cure
            )


@rule_of_pool("module-name", "error", "documented", "api-types")
def module_named(pool: Pool, context: RuleContext) -> Findings:
    """The Python module must have an importable name such as trainer.task, not a filename."""
    name = pool.spec.python_package_spec.python_module
    if name and not MODULE_NAME.fullmatch(name):
        module = name.removesuffix(".py").replace("/", ".").strip(".")
        cure = f"write {module}" if MODULE_NAME.fullmatch(module) else "write a name such as trainer.task"
        yield Finding("pythonPackageSpec.pythonModule", f'"{name}" isn\'t a module name', cure)


@rule_of_pool("env-count", "error", "documented", "api-types")
def env_small(pool: Pool, context: RuleContext) -> Findings:
    """A pool can have at most 100 environment variables."""
    cure = "put the rest in a file that the trainer reads"
    yield from more(f"{pool.task}.env", len(pool.env), context.catalog.limits.env, "variables", cure)


@rule_of_pool("env-name", "error", "documented", "api-types")
def env_named(pool: Pool, context: RuleContext) -> Findings:
    """The name of an environment variable must consist of letters, digits, and underscores, and must not begin with a
    digit."""
    for index, variable in enumerate(pool.env):
        if not VARIABLE.fullmatch(variable.name):
            proposal = re.sub("^(?=[0-9])|[^A-Za-z0-9_]", "_", variable.name) or "a name"
            yield Finding(f"{pool.task}.env[{index}].name", f'"{variable.name}" isn\'t valid', f"write {proposal}")


@rule_of_pool("env-apostrophe", "error", "documented", "env-refusal")
def env_without_apostrophes(pool: Pool, context: RuleContext) -> Findings:
    """The value of an environment variable must not contain an apostrophe unless a backslash precedes it."""
    for index, variable in enumerate(pool.env):
        if APOSTROPHE.search(variable.value):
            cure = "use double quotes, or write \\' if the program accepts a backslash"
            yield Finding(f"{pool.task}.env[{index}].value", "Vertex AI rejects values with an apostrophe", cure)


@rule_of_pool("env-repeated", "warning", "inferred", "api-types")
def env_distinct(pool: Pool, context: RuleContext) -> Findings:
    """A pool should set an environment variable only once.
    Otherwise: Only one of the values takes effect, and the documentation doesn't state which one."""
    for name, count in Counter(variable.name for variable in pool.env).items():
        if count > 1:
            yield Finding(f"{pool.task}.env", f"{name} is set {count} times", "keep only one value")


@rule("env-service", "warning", "inferred", "distributed-training", "vertex_launch/job/contract.py")
def env_free(job: Job, context: RuleContext) -> Findings:
    """A job should not set environment variables that Vertex AI sets, such as AIP_MODEL_DIR and RANK.
    Otherwise: The documentation doesn't state whether the job's value or Vertex AI's value takes effect."""
    several = sum(pool.replica_count for pool in job.pools) > 1
    output = job.spec.base_output_directory.output_uri_prefix
    for pool in job.pools:
        of_several = {"TF_CONFIG", *(OF_SEVERAL if pool.trains else ())} if several else set()
        for index, name in enumerate(variable.name for variable in pool.env):
            if name in of_several or (SET.fullmatch(name) and (output or not name.endswith("_DIR"))):
                fault = f"Vertex AI also sets {name}, and the documentation doesn't state which value takes effect"
                yield Finding(
                    pool.at(pool.task, f"env[{index}].name"), fault, "remove the variable, or use a different name"
                )


@rule("env-unset", "warning", "inferred", "distributed-training", "vertex_launch/job/contract.py")
def references_set(job: Job, context: RuleContext) -> Findings:
    """A job with one replica should not refer to RANK, WORLD_SIZE, MASTER_ADDR, or MASTER_PORT. Vertex AI sets these
    variables only in jobs with several replicas.
    Otherwise: The program receives literal text such as $(RANK) instead of a value."""
    for pool in job.pools if sum(pool.replica_count for pool in job.pools) == 1 else ():
        for place, word in words(pool, context):
            for name in REFERENCE.findall(word):
                if name in OF_SEVERAL:
                    fault = f"$({name}) isn't replaced, because Vertex AI sets it only in jobs with several replicas"
                    yield Finding(place, fault, f"write {OF_SEVERAL[name]}, or remove the flag")


@rule_of_pool("command-letters", "error", "documented", "api-types")
def command_of_words(pool: Pool, context: RuleContext) -> Findings:
    """The command and args must be lists, because the Python SDK splits a string into single characters.
    Otherwise: Vertex AI starts a program whose name is a single character, and every replica fails immediately."""
    for key, items in (("command", pool.spec.container_spec.command), ("args", pool.args)):
        text = "".join(items)
        letters = len(items) >= FEWEST_LETTERS and all(len(item) == 1 for item in items)
        if letters and not text.isdigit():  # single digits may be intended
            fault = f'the SDK split the string "{text}" into a list of single characters'
            yield Finding(f"{pool.task}.{key}", fault, f"pass a list: {json.dumps(text.split())}")


def _kind(image: str) -> tuple[str, str, str]:
    """Return the framework, hardware, and version in a Google image's name, or "" for each missing value."""
    framework, hardware, version = found.groups() if (found := GOOGLES.match(image)) else ("", "", "")
    return framework.replace("scikit-learn", "sklearn"), re.sub("cu.*", "gpu", hardware.replace("xla", "cpu")), version


def _tag(image: str) -> str:
    """Return an image's tag, or "" if the image doesn't have one. For example, trainer:1 has the tag 1."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def untagged(image: str) -> str:
    """Return an image name without its tag and digest. For example, demo/trainer:1 becomes demo/trainer."""
    bare = image.partition("@")[0]
    return bare.removesuffix(f":{_tag(image)}")

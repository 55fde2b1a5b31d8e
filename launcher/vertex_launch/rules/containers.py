"""Programs of the pools: images, packages and environment variables."""

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

RESTRICTED = "/vertex-ai-restricted/"  # where the reduction server is
OF_REDUCERS = "reducers"  # the label of an image that says whether NCCL can use them there
CPU = "-cpu"  # behind the image of the settings: the same without CUDA
CUDA = re.compile(r'^LABEL\s(?:.*\\\n)*.*\bcuda="?([0-9]+)([0-9.]*)', re.MULTILINE)
# Variables of jobs with several replicas, and what they would be in a job of one.
OF_SEVERAL = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
# Source: github.com/distribution/reference, regexp.go: registry, path, tag and digest.
_PART = "[a-z0-9]+(?:(?:[.]|__?|-+)[a-z0-9]+)*"
REFERENCE_TO_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@\w+:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
# Framework, hardware and version in the name of an image of Google's; pytorch-xla is its PyTorch for CPUs.
GOOGLES = re.compile(
    r"(?:[\w-]+-docker\.pkg\.dev/vertex-ai|gcr\.io/cloud-aiplatform|\S*deeplearning-platform-release)/\S*?"
    r"\b(pytorch|tf|sklearn|scikit-learn|xgboost)2?-(cpu|gpu|tpu|xla|cu[0-9]+)\.?([0-9]*-?[0-9]*)"
)
SET = re.compile("CLUSTER_SPEC|HOSTNAME|CLOUD_ML_.*|AIP_.*", re.DOTALL)  # by the service, in every job
APOSTROPHE = re.compile(r"(?<!\\)(?:\\\\)*'")  # one that no backslash escapes
MODULE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
FEWEST_LETTERS = 4  # that are taken for a text; a program such as [ has operands of one letter, too
IMAGE = {"containerSpec": "containerSpec.imageUri", "pythonPackageSpec": "pythonPackageSpec.executorImageUri"}


def image_of(pool: Pool) -> str:
    return pool.spec.container_spec.image_uri or pool.spec.python_package_spec.executor_image_uri


def image_at(pool: Pool) -> str:
    """The place of the pool's image."""
    return pool.at(IMAGE[pool.task])


def images(job: Job) -> Iterator[tuple[Pool, str]]:
    """Every image with the first pool that runs it: two pools with one image are one finding."""
    first = {image_of(pool): pool for pool in reversed(job.pools)}
    return ((pool, image) for image, pool in reversed(first.items()) if image)


def words(pool: Pool, context: RuleContext) -> list[tuple[str, str]]:
    """The words of a pool's program, each with its place; an image without a command has that of vertex.toml.

    Only the service's variables are not known.
    """
    command, env = pool.spec.container_spec.command, expanded(pool.env, {})
    usual = () if command else context.settings.commands.get(image_of(pool), ())
    said = [(f"command[{n}]", word) for n, word in enumerate(command)]
    said += [(f"args[{n}]", word) for n, word in enumerate(pool.args)]
    own = [(pool.at(pool.task, place), expand(word, env)) for place, word in said]
    return [(pool.at(pool.task), word) for word in usual] + own


class Flag(NamedTuple):
    """One flag of a program: its place, its name with underscores, and its value, if it has one."""

    place: str
    name: str
    value: str


def flags(program: Sequence[tuple[str, str]]) -> Iterator[Flag]:
    """The flags among a program's words, `--name value` or `--name=value`."""
    for (place, word), (_, follower) in pairwise([*program, ("", "")]):
        name, separator, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name:
            yield Flag(place, name.replace("-", "_"), value if separator else follower)


def prebuilt_name(context: RuleContext, image: str) -> str:
    """The name of one of Google's training images, without registry and tag, or "" for any other image."""
    name, registries = untagged(image), context.catalog.prebuilt_registries
    return next((name.removeprefix(f"{one}/") for one in registries if name.startswith(f"{one}/")), "")


def is_ours(context: RuleContext, image: str) -> bool:
    """Whether it is the image of the settings, by its tag or by any digest, or the small one without CUDA."""
    ours = context.settings.image
    return bool(ours) and (image in (ours, f"{ours}{CPU}") or image.startswith(f"{untagged(ours)}@sha256:"))


@rule("image-name", "error", "documented", "image-reference")
def image_named(job: Job, context: RuleContext) -> Findings:
    """An image has a name that a registry can have, in small letters, without a protocol and marks of a template.
    Otherwise: Vertex AI refuses the job, or no replica starts."""
    for pool, image in images(job):
        if not REFERENCE_TO_IMAGE.fullmatch(image):
            mark = MARK_IN_NAME.search(image)
            cure = f"write what {mark[0]} stands for" if mark else "write REGISTRY/NAME:TAG, in small letters"
            yield Finding(image_at(pool), f'"{image}" cannot be the name of an image', cure)


@rule("image-differs", "warning", "documented", "settings")
def image_ours(job: Job, context: RuleContext) -> Findings:
    """The image is the one of the settings, which is built from this folder.
    Otherwise: The job runs another program than the one that was built last, or finds no image at all."""
    ours, origin = context.settings.image, context.settings.origin("image")
    for pool, image in images(job) if ours else ():
        named = REFERENCE_TO_IMAGE.fullmatch(image)  # `image_named` reports others
        trains = named and pool.trains and pool.task == "containerSpec" and not pool.reduces
        if trains and not (is_ours(context, image) or prebuilt_name(context, image)):
            fault = f'"{image}" is not the image that {origin} names'
            yield Finding(image_at(pool), fault, f"write {ours} here, or change the image in {origin}")


@rule("image-tag", "warning", "inferred", "training-service")
def image_fixed(job: Job, context: RuleContext) -> Findings:
    """A custom image has a tag of its own, or better a digest; `latest`, written or implied, moves.
    Otherwise: A replica that restarts after the next push runs other code than its peers."""
    for pool, image in images(job):
        googles = pool.reduces or RESTRICTED in image or prebuilt_name(context, image)
        if not (googles or "@" in image) and REFERENCE_TO_IMAGE.fullmatch(image) and _tag(image) in ("", "latest"):
            fault = "the tag latest means another image after every push"
            yield Finding(image_at(pool), fault, "give it a tag of its own, such as :1, or best a digest")


@rule_of_pool("image-cuda", "warning", "documented", "cuda-13", "dockerfile")
def image_has_code(pool: Pool, context: RuleContext) -> Findings:
    """Our image has code for the GPUs of its pools: its Dockerfile's LABEL cuda names no version that dropped them.
    Otherwise: Every replica ends at its first step: no kernel image is available for execution on the device."""
    label, image = CUDA.search(context.project.dockerfile), image_of(pool)
    newer = [version for version, kinds in context.catalog.cuda_dropped.items() if pool.accelerator in kinds]
    ours = is_ours(context, image) and not image.endswith(CPU)
    if label and ours and any(int(label[1]) >= version for version in newer):
        built = f"by the Dockerfile here, it is built with CUDA {label[1]}{label[2]}"
        fault = f"{built}, which has no code for {pool.accelerator}"
        yield Finding(IMAGE[pool.task], fault, "build it with CUDA 12.6, or use T4 or newer GPUs")


@rule("image-purpose", "warning", "inferred", "settings", "prebuilt-containers")
def image_fits(job: Job, context: RuleContext) -> Findings:
    """Pools with GPUs run an image with CUDA, other pools one for CPUs, and none an image of Google's for predictions.
    Otherwise: The job trains on the processors, and its GPUs are paid for and idle; or the image lacks its program."""
    for pool, image in images(job):
        small, hardware = f"{context.settings.image}{CPU}", _kind(image)[1]
        with_gpus = [one for one in job.pools if one.accelerator and image_of(one) == image]
        if with_gpus and (hardware == "cpu" or image == small):
            cure = "use an image for GPUs, or machines without" if hardware else f"write {context.settings.image}"
            yield Finding(image_at(with_gpus[0]), "this image has no CUDA, and the machine has GPUs", cure)
        if hardware == "gpu" and not with_gpus:
            yield Finding(image_at(pool), "this image is for GPUs, and the machine has none", "use an image for CPUs")
        if hardware and "/prediction/" in image:
            cure = "use an image of your own, or one for training"
            yield Finding(image_at(pool), "this image serves predictions, and isn't made for training", cure)


@rule("prebuilt-unknown", "warning", "uncertain", "prebuilt-containers")
def prebuilt_listed(job: Job, context: RuleContext) -> Findings:
    """An image from Google's registries for training is one of those that its page lists.
    Otherwise: No replica starts, unless the image is newer than the list."""
    listed, today = context.catalog.prebuilt_images, context.project.today or date.min
    kinds = {name: _kind(f"{context.catalog.prebuilt_registries[0]}/{name}") for name in listed}
    for pool, image in images(job):
        name, kind = prebuilt_name(context, image), _kind(image)
        if name and name not in listed:
            same = next((one for one in kinds if kinds[one] == kind), "")
            current = [one for one, end in listed.items() if end >= today and kinds[one][:2] == kind[:2]]
            cure = f"use one of {', '.join(current)}" if current else "build an image of your own, for a containerSpec"
            if same:
                ended = f" Its availability ended on {listed[same]}: build an image of your own"
                cure = f"did you mean {same}:latest?{'' if same in current else ended}"
            yield Finding(image_at(pool), f'"{name}" is none of the images that the documentation lists', cure)


@rule("prebuilt-ended", "warning", "documented", "prebuilt-containers")
def prebuilt_available(job: Job, context: RuleContext) -> Findings:
    """A training image of Google's has not reached the end of its availability.
    Otherwise: Google may remove the image on any day, and from then on no replica starts."""
    for pool, image in images(job):
        end = context.catalog.prebuilt_images.get(prebuilt_name(context, image))
        if end and context.project.today and end < context.project.today:
            fault = f"the end of its availability was {end}"
            yield Finding(image_at(pool), fault, "build an image of your own, for a containerSpec")


@rule("prebuilt-tag", "warning", "documented", "prebuilt-containers")
def prebuilt_latest(job: Job, context: RuleContext) -> Findings:
    """Google supports only the tag `latest` of its training images.
    Otherwise: The replicas run an image that is no longer maintained, or do not start."""
    for pool, image in images(job):
        name = prebuilt_name(context, image)
        if name in context.catalog.prebuilt_images and (_tag(image) != "latest" or "@" in image):
            yield Finding(image_at(pool), "only the tag latest is supported", f"write {untagged(image)}:latest")


@rule_of_pool("executor-foreign", "warning", "documented", "api-types")
def executor_prebuilt(pool: Pool, context: RuleContext) -> Findings:
    """A Python package runs in one of Google's training images.
    Otherwise: Vertex AI refuses the job, or starts the package in an image that may lack what it needs."""
    image = pool.spec.python_package_spec.executor_image_uri
    if REFERENCE_TO_IMAGE.fullmatch(image) and not prebuilt_name(context, image):
        cure = f"use one of {context.catalog.prebuilt_registries[0]}, or a containerSpec"
        yield Finding(IMAGE[pool.task], f'"{image}" is not one of Google\'s training images', cure)


@rule_of_pool("package-count", "error", "documented", "api-types")
def packages_few(pool: Pool, context: RuleContext) -> Findings:
    """A pool installs at most 100 packages."""
    count, limit = len(pool.spec.python_package_spec.package_uris), context.catalog.limits.package_uris
    yield from more("pythonPackageSpec.packageUris", count, limit, "packages", "put several into one")


@rule_of_pool("package-address", "error", "documented", "api-types")
def packages_in_buckets(pool: Pool, context: RuleContext) -> Findings:
    """Packages lie in Cloud Storage, gs://BUCKET/NAME."""
    for index, uri in enumerate(pool.spec.python_package_spec.package_uris):
        if not re.fullmatch(r"gs://[^/\s<>${}]+/\S+", uri):
            cure = "copy it to a bucket and write gs://BUCKET/NAME"
            yield Finding(f"pythonPackageSpec.packageUris[{index}]", f'"{uri}" is no object in a bucket', cure)


@rule_of_pool("module-name", "error", "documented", "api-types")
def module_named(pool: Pool, context: RuleContext) -> Findings:
    """The module of a package has a name that Python imports, such as trainer.task, and not its file's."""
    name = pool.spec.python_package_spec.python_module
    if name and not MODULE_NAME.fullmatch(name):
        module = name.removesuffix(".py").replace("/", ".").strip(".")
        cure = f"write {module}" if MODULE_NAME.fullmatch(module) else "write one such as trainer.task"
        yield Finding("pythonPackageSpec.pythonModule", f'"{name}" is no module\'s name', cure)


@rule_of_pool("env-count", "error", "documented", "api-types")
def env_small(pool: Pool, context: RuleContext) -> Findings:
    """A pool has at most 100 environment variables."""
    cure = "put the rest in a file that the trainer reads"
    yield from more(f"{pool.task}.env", len(pool.env), context.catalog.limits.env, "variables", cure)


@rule_of_pool("env-name", "error", "documented", "api-types")
def env_named(pool: Pool, context: RuleContext) -> Findings:
    """The name of an environment variable has letters, digits and underscores, and does not begin with a digit."""
    for index, variable in enumerate(pool.env):
        if not VARIABLE.fullmatch(variable.name):
            proposal = re.sub("^(?=[0-9])|[^A-Za-z0-9_]", "_", variable.name) or "a name"
            yield Finding(f"{pool.task}.env[{index}].name", f'"{variable.name}" cannot be one', f"write {proposal}")


@rule_of_pool("env-apostrophe", "error", "documented", "env-refusal")
def env_without_apostrophes(pool: Pool, context: RuleContext) -> Findings:
    """The value of an environment variable has no apostrophe without a backslash before it."""
    for index, variable in enumerate(pool.env):
        if APOSTROPHE.search(variable.value):
            cure = "write double quotes for it, or \\' if the program takes that"
            yield Finding(f"{pool.task}.env[{index}].value", "has an apostrophe, which Vertex AI refuses", cure)


@rule_of_pool("env-repeated", "warning", "inferred", "api-types")
def env_distinct(pool: Pool, context: RuleContext) -> Findings:
    """An environment variable is set once.
    Otherwise: One of the values counts; the documentation does not say which."""
    for name, count in Counter(variable.name for variable in pool.env).items():
        if count > 1:
            yield Finding(f"{pool.task}.env", f"{name} is set {count} times", "keep one of them")


@rule("env-service", "warning", "inferred", "distributed-training", "vertex_launch/job/contract.py")
def env_free(job: Job, context: RuleContext) -> Findings:
    """An environment variable has another name than those that the service sets, such as AIP_MODEL_DIR and RANK.
    Otherwise: The documentation does not say which value counts: the job's, or the service's."""
    several = sum(pool.replica_count for pool in job.pools) > 1
    output = job.spec.base_output_directory.output_uri_prefix
    for pool in job.pools:
        of_several = {"TF_CONFIG", *(OF_SEVERAL if pool.trains else ())} if several else set()
        for index, name in enumerate(variable.name for variable in pool.env):
            if name in of_several or (SET.fullmatch(name) and (output or not name.endswith("_DIR"))):
                fault = f"Vertex AI sets {name} too, and it is not documented which value counts"
                yield Finding(pool.at(pool.task, f"env[{index}].name"), fault, "remove it, or use another name")


@rule("env-unset", "warning", "inferred", "distributed-training", "vertex_launch/job/contract.py")
def references_set(job: Job, context: RuleContext) -> Findings:
    """A job of one replica refers to no RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT: those of several have them.
    Otherwise: The program is given the text $(RANK) itself, where it wants a number."""
    for pool in job.pools if sum(pool.replica_count for pool in job.pools) == 1 else ():
        for place, word in words(pool, context):
            for name in REFERENCE.findall(word):
                if name in OF_SEVERAL:
                    fault = f"$({name}) is set in jobs of several replicas only, and stays these letters here"
                    yield Finding(place, fault, f"write {OF_SEVERAL[name]} in its place, or leave the flag out")


@rule_of_pool("command-letters", "error", "documented", "api-types")
def command_of_words(pool: Pool, context: RuleContext) -> Findings:
    """A command and its args are lists of words; of a text, the Python SDK makes the list of its letters.
    Otherwise: The service starts a program that has a letter for a name, and every replica ends at once."""
    for key, items in (("command", pool.spec.container_spec.command), ("args", pool.args)):
        text = "".join(items)
        letters = len(items) >= FEWEST_LETTERS and all(len(item) == 1 for item in items)
        if letters and not text.isdigit():  # digits may be what a program is given
            fault = f'"{text}" has become a list of its letters, as the SDK makes of a text'
            yield Finding(f"{pool.task}.{key}", fault, f"pass a list: {json.dumps(text.split())}")


def _kind(image: str) -> tuple[str, str, str]:
    """Framework, hardware and version in the name of an image of Google's, "" where it has none or is another's."""
    framework, hardware, version = found.groups() if (found := GOOGLES.match(image)) else ("", "", "")
    return framework.replace("scikit-learn", "sklearn"), re.sub("cu.*", "gpu", hardware.replace("xla", "cpu")), version


def _tag(image: str) -> str:
    """`1` of us-docker.pkg.dev/demo/trainer:1, "" where there is none."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def untagged(image: str) -> str:
    """us-docker.pkg.dev/demo/trainer of us-docker.pkg.dev/demo/trainer:1, or of any digest of it."""
    bare = image.partition("@")[0]
    return bare.removesuffix(f":{_tag(image)}")

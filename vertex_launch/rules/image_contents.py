"""Rules about the content of an image: the files that its Dockerfile copies, and the framework that its name tells.

Source: Docker, "Dockerfile reference" and "Build context", 2026.
"""

import posixpath
import re
from itertools import pairwise

from vertex_launch.rules.containers import image_at, image_of, images, is_ours, words
from vertex_launch.rules.rule import Finding, Findings, Job, RuleContext, rule

COPIES = re.compile(r"^[ \t]*(?:COPY|ADD)\s+(?!.*--from=)(?:--\S+\s+)*(.+)$", re.MULTILINE | re.IGNORECASE)
WILD = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
FILE = re.compile(r"[\w.-][\w./-]*\.(?:py|sh|ya?ml|toml)")  # a program, or what configures it
BASES = re.compile(r"^(?:FROM|ARG) .*", re.MULTILINE)
FRAMEWORK = re.compile(r"\b(pytorch|tf|tensorflow)(?:2?-(?:[cgt]pu|xla)|/tensorflow|/pytorch)[.:](\d+)[-.](\d+)")
DISTRIBUTION = {"pytorch": "torch", "tf": "tensorflow", "tensorflow": "tensorflow"}
REQUIREMENTS = ("requirements/prebuilt.txt", "setup.py", "pyproject.toml")  # of a package


@rule("image-file", "warning", "inferred", "dockerfile")
def files_copied(job: Job, context: RuleContext) -> Findings:
    """A file of the project that our image's program names is one that the Dockerfile copies into the image.
    Otherwise: The job runs here; in the cloud every replica ends at once, as there is no such file."""
    project = context.project
    taken, ignored = sources(project.dockerfile), project.text(".dockerignore")
    folders = [one.rstrip("/") for one in taken if project.folder and (project.folder / one).is_dir()]
    for file, place in _files(job, context).items():
        if not any(_covers(one, file) for one in taken):
            move = f"move it into {folders[0]}/, which the Dockerfile copies, or " if folders else ""
            cure = f"{move}add the line COPY {file} {file} to the Dockerfile"
            yield Finding(place, f"the Dockerfile copies no {file}, so the image lacks it", cure)
        elif is_ignored(file, ignored):
            yield Finding(place, f".dockerignore keeps {file} out of the image", f"add the line !{file} to its end")


@rule("image-version", "warning", "inferred", "prebuilt-containers", "dockerfile")
def framework_as_here(job: Job, context: RuleContext) -> Findings:
    """The PyTorch or TensorFlow in the name of an image, or of the Dockerfile's base, is the one that jobs have here.
    Otherwise: What runs here may not run there, or may compute something else."""
    for pool, image in images(job):
        base = "\n".join(BASES.findall(context.project.dockerfile)) if is_ours(context, image) else ""
        files = REQUIREMENTS if pool.task == "pythonPackageSpec" else ()
        brought = "\n".join(map(context.project.text, files))
        for name, *numbers in FRAMEWORK.findall(base or image):
            framework, there = DISTRIBUTION[name], ".".join(numbers)
            here = context.project.versions.get(framework, there)
            if f"{here}.".startswith(f"{there}.") or re.search(rf"^[\"' ]*{framework}\b", brought, re.MULTILINE):
                continue
            fault = f"by {'its base' if base else 'its name'} it has {framework} {there}, and here jobs run with {here}"
            yield Finding(image_at(pool), fault, f"install {framework}=={there}.* here, or take an image with {here}")


def _files(job: Job, context: RuleContext) -> dict[str, str]:
    """Files of the project that programs in our image name, each with the first place that does."""
    found: dict[str, str] = {}
    for pool in (pool for pool in job.pools if context.project.dockerfile and is_ours(context, image_of(pool))):
        for (_, before), (place, word) in pairwise([("", ""), *words(pool, context)]):
            name = posixpath.normpath(word.rpartition("=")[2])
            for file in module_files(word) if before == "-m" else [name] if FILE.fullmatch(name) else []:
                if not file.startswith("..") and context.project.text(file):
                    found.setdefault(file, place)
    return found


def module_files(name: str) -> list[str]:
    """The files of which one is a module's: trainer/task.py or trainer/task/__main__.py of trainer.task."""
    path = re.sub(r"[^\w.]", "", name).replace(".", "/")
    return [f"{path}.py", f"{path}/__main__.py"]


def sources(dockerfile: str) -> list[str]:
    """Return the files, folders and patterns that the Dockerfile copies."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^[ \t]*#.*\n", "", dockerfile, flags=re.MULTILINE))
    found: list[str] = []
    for names in COPIES.findall(lines):
        *copied, _ = re.findall(r'"([^"]*)"', names) if names.startswith("[") else names.split()
        found += copied
    return found


def is_ignored(file: str, dockerignore: str) -> bool:
    """Whether .dockerignore keeps the file out; its last line that names the file decides."""
    lines = [line.strip() for line in dockerignore.splitlines() if not line.startswith("#")]
    deciding = [line for line in lines if line and _covers(line.removeprefix("!"), file)]
    return bool(deciding) and not deciding[-1].startswith("!")


def _covers(pattern: str, file: str) -> bool:
    """Whether a pattern means a file, or a folder above it; a variable may be anything."""
    normal = posixpath.normpath(pattern).lstrip("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\$\{[^}]*\}|\$\w+)", normal)
    found = "".join(WILD.get(part, ".*") if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return normal in (".", "") or bool(re.fullmatch(f"{found}(/.*)?", file))

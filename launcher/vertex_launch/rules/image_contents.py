"""Rules for the contents of an image: files, Python modules, and the framework.

Source: Docker, "Dockerfile reference" and "Build context", 2026.
"""

import ast
import contextlib
import functools
import posixpath
import re
import sys
import warnings
from collections.abc import Mapping
from importlib import metadata
from itertools import accumulate, pairwise
from pathlib import Path

from vertex_launch.rules import shells
from vertex_launch.rules.containers import image_at, image_of, images, is_ours, words
from vertex_launch.rules.rule import Finding, Findings, Job, Project, RuleContext, rule
from vertex_launch.rules.training import statements

COPIES = re.compile(r"^[ \t]*(?:COPY|ADD)\s+(?!.*--from=)(?:--\S+\s+)*(.+)$", re.MULTILINE | re.IGNORECASE)
WILD = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
FILE = re.compile(r"[\w.-][\w./-]*\.(?:py|sh|ya?ml|toml)")  # a program or its configuration
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
BASES = re.compile(r"^(?:FROM|ARG) .*", re.MULTILINE)
FRAMEWORK = re.compile(r"\b(pytorch|tf|tensorflow)(?:2?-(?:[cgt]pu|xla)|/tensorflow|/pytorch)[.:](\d+)[-.](\d+)")
DISTRIBUTION = {"pytorch": "torch", "tf": "tensorflow", "tensorflow": "tensorflow"}
REQUIREMENTS = ("requirements/prebuilt.txt", "setup.py", "pyproject.toml")  # the requirements of a package
PIP = re.compile(r"\bpip3? install ((?:[^&|;\n\\]|\\\n)*)")
REQUIREMENT = re.compile(r"^([A-Za-z][\w.-]*)(?=\s*(?:[\[=<>~!;@#]|$))", re.MULTILINE)
NEEDED = re.compile(r"[\w.-]+(?!.*extra ==)")  # a requirement of a distribution without an extra
NAMELESS = re.compile(r"^(?:git\+|https?:|\.|-e|--editable)", re.MULTILINE)  # requirements without a distribution name
# A base image without Python libraries.
BARE = re.compile(r"^(?:FROM|ARG \w+=)\s*\S*(?:nvidia/cuda|python|ubuntu|debian)[:@]", re.MULTILINE)


@rule("image-file", "warning", "inferred", "dockerfile")
def files_copied(job: Job, context: RuleContext) -> Findings:
    """The Dockerfile should copy each project file that the program in the project's image uses.
    Otherwise: The job runs locally, but in the cloud, every replica fails immediately because the file is missing."""
    project = context.project
    taken, ignored = sources(project.dockerfile), project.text(".dockerignore")
    folders = [one.rstrip("/") for one in taken if project.folder and (project.folder / one).is_dir()]
    for file, place in _files(job, context).items():
        if not any(_covers(one, file) for one in taken):
            move = f"move the file into {folders[0]}/, which the Dockerfile copies, or " if folders else ""
            cure = f"{move}add the line COPY {file} {file} to the Dockerfile"
            yield Finding(place, f"the Dockerfile doesn't copy {file}, so the image doesn't contain this file", cure)
        elif is_ignored(file, ignored):
            yield Finding(
                place,
                f".dockerignore excludes {file} from the image",
                f"add the line !{file} at the end of .dockerignore",
            )


@rule("image-syntax", "warning", "inferred", "dockerfile")
def python_is_valid(job: Job, context: RuleContext) -> Findings:
    """Each Python file of the program in the project's image should be valid Python.
    Otherwise: Every replica fails when it imports the file."""
    root, ignored = context.project.folder or Path(), context.project.text(".dockerignore")
    places: dict[Path, str] = {}
    for file, place in _files(job, context).items():
        folder = (root / file).parent
        beside = folder.rglob("*.py") if folder != root else ()
        places = dict.fromkeys([root / file, *beside], place) | places
    for path in sorted(path for path in places if path.suffix == ".py"):
        name = path.relative_to(root).as_posix()
        if (fault := _syntax_error(_code(path))) and not is_ignored(name, ignored):
            yield Finding(places[path], f"{name} isn't valid Python {VERSION}: {fault}", f"correct {name}")


@rule("image-import", "warning", "inferred", "dockerfile")
def imports_installed(job: Job, context: RuleContext) -> Findings:
    """The Dockerfile's requirements and their dependencies should include each module that a script imports.
    Otherwise: The job runs locally, but in the cloud, every replica fails immediately because the module is missing."""
    scripts = {file: place for file, place in _files(job, context).items() if file.endswith(".py")}
    imports = {file: names for file in scripts if (names := _imports(context.project, file))}
    files, installed = _installed(context.project) if imports else ([], set())
    for file, names in imports.items() if files else ():
        for name in names:
            top, spelled = name.partition(".")[0], accumulate(name.split("."), "{}-{}".format)
            if installed & {*map(_normal, spelled)}:
                continue
            known = shells.FACTS["distributions"].get(top) or _distributions().get(top) or [top]
            known = [name.replace(".", "-"), *known] if top == "google" else known
            if not installed & {*map(_normal, known)}:
                fault = f"{file} imports {top}, but the Dockerfile's requirements don't include it"
                yield Finding(scripts[file], fault, f"add {known[0]} to {files[-1]}")


def _code(path: Path) -> bytes:
    """Return the contents of a file. Return b"" if the file can't be read."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


@functools.cache  # several job files of a project run the same code
def _syntax_error(code: bytes) -> str:
    """Return the reason and the line if Python can't compile the code. Return "" if the code is valid."""
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(RecursionError):
            compile(code, "", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.msg} (line {error.lineno})"
    except ValueError as error:
        return str(error)  # such as a null byte
    return ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions that contain each module. Reading their metadata takes half a second."""
    return metadata.packages_distributions()


@rule("image-version", "warning", "inferred", "prebuilt-containers", "dockerfile")
def framework_as_here(job: Job, context: RuleContext) -> Findings:
    """If the name of the image or its base image contains a PyTorch or TensorFlow version, the local version should
    match it.
    Otherwise: Code that works locally might fail or produce different results in the cloud."""
    for pool, image in images(job):
        base = "\n".join(BASES.findall(context.project.dockerfile)) if is_ours(context, image) else ""
        files = REQUIREMENTS if pool.task == "pythonPackageSpec" else ()
        brought = "\n".join(map(context.project.text, files))
        for name, *numbers in FRAMEWORK.findall(base or image):
            framework, there = DISTRIBUTION[name], ".".join(numbers)
            here = context.project.versions.get(framework, there)
            if f"{here}.".startswith(f"{there}.") or re.search(rf"^[\"' ]*{framework}\b", brought, re.MULTILINE):
                continue
            fault = (
                f"the image has {framework} {there}, according to its {'base image' if base else 'name'}, "
                f"but local jobs run with {here}"
            )
            yield Finding(image_at(pool), fault, f"install {framework}=={there}.* locally, or use an image with {here}")


def _files(job: Job, context: RuleContext) -> dict[str, str]:
    """Return the project files that programs in the project's image use, each with its first location in the job."""
    found: dict[str, str] = {}
    for pool in (pool for pool in job.pools if context.project.dockerfile and is_ours(context, image_of(pool))):
        parts = [(place, part) for place, word in words(pool, context) for part in word.split()]  # also of a script
        for (_, before), (place, word) in pairwise([("", ""), *parts]):
            name = posixpath.normpath(word.rpartition("=")[2])
            for file in module_files(word) if before == "-m" else [name] if FILE.fullmatch(name) else []:
                if not file.startswith("..") and context.project.text(file):
                    found.setdefault(file, place)
    return found


def module_files(name: str) -> list[str]:
    """Return the two possible files of a module, such as trainer/task.py and trainer/task/__main__.py."""
    path = re.sub(r"[^\w.]", "", name).replace(".", "/")
    return [f"{path}.py", f"{path}/__main__.py"]


def sources(dockerfile: str) -> list[str]:
    """Return the files, folders, and patterns that the Dockerfile copies."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^[ \t]*#.*\n", "", dockerfile, flags=re.MULTILINE))
    found: list[str] = []
    for names in COPIES.findall(lines):
        *copied, _ = re.findall(r'"([^"]*)"', names) if names.startswith("[") else names.split()
        found += copied
    return found


def is_ignored(file: str, dockerignore: str) -> bool:
    """Return whether .dockerignore excludes the file. The last matching line in .dockerignore applies."""
    lines = [line.strip() for line in dockerignore.splitlines() if not line.startswith("#")]
    deciding = [line for line in lines if line and _covers(line.removeprefix("!"), file)]
    return bool(deciding) and not deciding[-1].startswith("!")


def _covers(pattern: str, file: str) -> bool:
    """Return whether a pattern matches a file or one of its parent folders. A variable matches any text."""
    normal = posixpath.normpath(pattern).lstrip("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\$\{[^}]*\}|\$\w+)", normal)
    found = "".join(WILD.get(part, ".*") if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return normal in (".", "") or bool(re.fullmatch(f"{found}(/.*)?", file))


def _imports(project: Project, file: str) -> dict[str, None]:
    """Return the third-party modules that a script imports outside functions, if statements, and try statements."""
    body, root = statements((project.folder or Path()) / file), project.folder or Path()
    names = [one.name for node in body if isinstance(node, ast.Import) for one in node.names]
    modules = [node for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    names += [f"{node.module}.{one.name}" for node in modules for one in node.names]
    own = {path.stem for folder in (root, (root / file).parent) for path in folder.iterdir()} | sys.stdlib_module_names
    return dict.fromkeys(name for name in names if name.partition(".")[0] not in own)


def _installed(project: Project) -> tuple[list[str], set[str]]:
    """Return the Dockerfile's requirements files and the distributions that they install.

    The list of files is empty if the distributions are unknown. A lock file lists all distributions. Without a lock
    file, dependencies are known only for distributions that are installed locally.
    """
    words = [word.lstrip("/") for word in re.findall(r"[\w./-]+\.txt", project.dockerfile)]
    paths = dict.fromkeys(path for word in words for path in (word, f"requirements/{posixpath.basename(word)}"))
    files = {path: text for path in paths if (text := project.text(path))}
    inline = [word for words in PIP.findall(project.dockerfile) for word in words.split() if not word.endswith(".txt")]
    lines = "\n".join([*files.values(), *inline])
    locks = [path for path, text in files.items() if "lock" in path or "--hash" in text]
    rest, found = {_normal(name) for name in REQUIREMENT.findall(lines)}, set[str]()
    if not files or NAMELESS.search(lines) or not BARE.search(project.dockerfile):
        return [], found
    while rest:
        found.add(name := rest.pop())
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            if not locks:
                return [], found
            needs = []
        rest |= {_normal(need[0]) for one in needs if (need := NEEDED.match(one))} - found
    return sorted(files, key=lambda path: (path not in locks, path)), found


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()

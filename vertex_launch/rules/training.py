"""What the project's own trainer is told, where a pool runs `python -m trainer.task` in the project's image.

Of the trainer only that is believed which can be read in trainer/config.py; of any other program, nothing.
"""

import ast
import contextlib
import itertools
import pkgutil
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from vertex_launch.errors import Finding, Findings, did_you_mean
from vertex_launch.replicas import REFERENCE
from vertex_launch.rules.containers import Flag, flags, image_of, is_ours, prebuilt_name, untagged, words
from vertex_launch.rules.rule import Project, RuleContext, rule
from vertex_launch.spec import CHIEF, EVALUATORS, Job, Pool

MODULE = "trainer.task"
NUMBERS = {"int": "a whole number", "float": "a number"}
FLAGS, CONFIG = "trainer/config.py", "Config"  # the file and its class whose fields are flags
NO_COMPILER = re.compile(r"^ARG COMPILE=\s*$", re.MULTILINE)
MODEL = "trainer/model.py"  # whose function metrics() names what is reported besides the loss
NAMES = re.compile(r"""(?<=["'])[^"'/\n]+(?=["'])|\b\w+(?==)""")  # in Python: "f1", f1=
WITHOUT_FIELD = ("help", "describe")  # flags that are no fields of Config


def project(folder: Path, today: date) -> Project:
    """What stands around a job file: the trainer's flags and the Dockerfile, as far as they can be read."""
    fields: Mapping[str, ast.AnnAssign] = {}
    metrics: tuple[str, ...] = ()
    unreadable = (SyntaxError, ValueError, LookupError, RecursionError)
    with contextlib.suppress(*unreadable):
        metrics = _metrics(folder)
    with contextlib.suppress(*unreadable):
        fields = _fields(folder, FLAGS, CONFIG)
    sources = map(_text, sorted((folder / "trainer").rglob("*.py")))
    return Project(
        today,
        flags={name: _plain(field.value) for name, field in fields.items()},
        values={name: taken for name, field in fields.items() if (taken := _taken(field.annotation, folder))},
        dockerfile=_text(folder / "Dockerfile"),
        metrics=metrics,
        names=frozenset(name for source in sources for name in NAMES.findall(source)),
    )


def runs_trainer(pool: Pool, context: RuleContext) -> bool:
    """Whether a pool runs the project's own trainer: there is one, and the image is not known to be another's."""
    if not context.project.names:  # there are no files of one
        return False
    if pool.spec.python_package_spec.python_module == MODULE:
        return True
    ours, image = context.settings.image, image_of(pool)
    own = not ours or untagged(image) == untagged(ours) or bool(prebuilt_name(context, image))
    return own and MODULE in (word for _, word in _program(pool, context))


def _flags(pool: Pool, context: RuleContext) -> list[Flag]:
    """The flags that a pool gives the project's trainer; none where it runs something else."""
    if not runs_trainer(pool, context):
        return []
    program = _program(pool, context)
    spoken = [word for _, word in program]
    return [*flags(program[spoken.index(MODULE) :] if MODULE in spoken else program)]


FLAG_RULES = ("flag-unknown", "flag-value")


@rule("flag-unknown", "warning", "documented", "trainer")
def flags_known(job: Job, context: RuleContext) -> Findings:
    """A flag in args is one that the project's trainer has: a field of Config.

    Otherwise: Every replica ends at once, with a usage message.
    """
    fields = context.project.flags
    for pool in job.pools if fields else ():
        for flag in _flags(pool, context):
            name = flag.name.partition(".")[0].removeprefix("no_")
            if not {name, flag.name} & {*fields, *WITHOUT_FIELD}:
                cure = did_you_mean(flag.name, [f"--{field.replace('_', '-')}" for field in fields])
                yield Finding(flag.place, f"{FLAGS} has no flag --{flag.name.replace('_', '-')}", cure)


@rule("flag-value", "warning", "documented", "trainer")
def flags_valid(job: Job, context: RuleContext) -> Findings:
    """A flag has a value that its field of Config takes: a number, or one of its choices.

    Otherwise: Every replica ends at once, with a usage message.
    """
    for pool in job.training_pools:
        for flag in _flags(pool, context):
            taken = context.project.values.get(flag.name, ())
            if taken and not REFERENCE.search(flag.value) and not any(_fits(flag.value, one) for one in taken):
                named = " or ".join(NUMBERS.get(one, one) for one in taken)
                cure = f"write {named}" if NUMBERS.keys() & {*taken} else did_you_mean(flag.value, taken)
                fault = f'--{flag.name.replace("_", "-")} is "{flag.value}", which {FLAGS} does not take'
                yield Finding(flag.place, fault, cure)


def _fits(value: str, taken: str) -> bool:
    """Whether a value is that choice, or a number of that kind as Python reads it, which the trainer does, too."""
    if taken not in NUMBERS:
        return value == taken
    try:
        {"int": int, "float": float}[taken](value)
    except ValueError:
        return False
    return True


@rule("flag-compile", "warning", "documented", "dockerfile")
def compiler_there(job: Job, context: RuleContext) -> Findings:
    """An image that is told to --compile has a compiler: its Dockerfile says ARG COMPILE=1.

    Otherwise: Every replica ends at once: kernels are compiled on the machine that trains.
    """
    for pool in job.training_pools if NO_COMPILER.search(context.project.dockerfile) else ():
        for flag in _flags(pool, context):
            if flag.name == "compile" and is_ours(context, image_of(pool)):
                fault = "by the Dockerfile here the image has no compiler, unless --build-arg=COMPILE=1 built it"
                yield Finding(flag.place, fault, "write ARG COMPILE=1 there and build it again, or leave out --compile")


@rule("flags-differ", "warning", "documented", "trainer")
def flags_alike(job: Job, context: RuleContext) -> Findings:
    """All replicas that train are given the same flags: pools 0 and 1 have the same args.

    Otherwise: The replicas disagree about batch, model or steps: the job fails, or trains something else.
    """
    for first, second in itertools.pairwise(pool for pool in job.training_pools if runs_trainer(pool, context)):
        there, here = ({flag.name: flag for flag in _flags(pool, context)} for pool in (first, second))
        for name in dict.fromkeys((*here, *there)):
            said, other = _said(here.get(name)), _said(there.get(name))
            if said != other:
                place = here[name].place if name in here else second.at(second.task, "args")
                fault = f"--{name.replace('_', '-')} is {said} here and {other} in pool {first.index}"
                yield Finding(place, fault, "give both pools the same flags")


def _said(flag: Flag | None) -> str:
    if flag is None:
        return "missing"
    return flag.value or "set"


@rule("batch-small", "warning", "documented", "trainer")
def batch_for_all(job: Job, context: RuleContext) -> Findings:
    """The global batch has at least one sample for each GPU of pools 0 and 1.

    Otherwise: Every replica ends at once: some would have no sample.
    """
    place, batch, world = _batch(job, context)
    if 0 < batch < world:
        fault = f"a global batch of {batch} leaves some of {world} GPUs without a sample"
        yield Finding(place, f"{fault}{_default(place)}", f"use {world} or more")


@rule("batch-uneven", "warning", "documented", "trainer")
def batch_even(job: Job, context: RuleContext) -> Findings:
    """The global batch is a multiple of the number of GPUs in pools 0 and 1.

    Otherwise: The job runs; in every step some GPUs wait for those that have one sample more.
    """
    place, batch, world = _batch(job, context)
    if batch > world and batch % world:
        lower = batch // world * world
        fault = f"a global batch of {batch} does not divide among {world} GPUs"
        yield Finding(place, f"{fault}{_default(place)}", f"use {lower} or {lower + world}")


@rule("evaluator-count", "warning", "documented", "trainer")
def one_evaluator(job: Job, context: RuleContext) -> Findings:
    """A pool 3 that runs the trainer has one replica: one evaluator scores all checkpoints.

    Otherwise: All evaluators but the first end at once with an error, and fail the job.
    """
    for pool in job.pools:
        if pool.index == EVALUATORS and pool.replica_count > 1 and runs_trainer(pool, context):
            fault = f"is {pool.replica_count}, and one evaluator scores all checkpoints"
            yield Finding(pool.at("replicaCount"), fault, "set it to 1")


def _batch(job: Job, context: RuleContext) -> tuple[str, int, int]:
    """Where the chief's global batch stands, the batch, 0 if it is unknown, and the GPUs that share it."""
    coordinates = any(pool.serves for pool in job.pools)  # the chief of parameter servers takes no part of the batch
    sharing = [pool for pool in job.training_pools if not (coordinates and pool.index == CHIEF)]
    world = sum(pool.replica_count * max(pool.accelerator_count, 1) for pool in sharing)
    # Without a replica, or with fewer than none, nothing can be divided; `has_replicas` reports that.
    counted = bool(sharing) and all(pool.replica_count > 0 for pool in sharing)
    if job.chief is None or not (counted and runs_trainer(job.chief, context)) or _shares(job.chief, context):
        return "", 0, world
    place, value = flag_of(job.chief, "global_batch", context)
    return place, int(value) if re.fullmatch("[0-9]{1,18}", value) else 0, world


def _shares(chief: Pool, context: RuleContext) -> bool:
    """Whether several GPUs compute one model, and with it one part of a batch."""
    devices, strategy = (flag_of(chief, name, context)[1] for name in ("model_parallel", "strategy"))
    return devices not in ("None", "1") or strategy in ("pipeline", "tensor")


def flag_of(pool: Pool, name: str, context: RuleContext) -> tuple[str, str]:
    """Where a pool's args give the trainer a flag, else where they could; and its value, else its plain default."""
    place, value = pool.at(pool.task, "args"), str(context.project.flags.get(name))
    for flag in _flags(pool, context):
        if flag.name == name:
            place, value = flag.place, flag.value
    return place, value


def _default(place: str) -> str:
    """Where a batch comes from that the job does not name."""
    return f", and is the default in {FLAGS}" if place.endswith("args") else ""


def _program(pool: Pool, context: RuleContext) -> list[tuple[str, str]]:
    """The words of a pool's program with their places; an image without a command has that of vertex.toml."""
    spoken = [*words(pool)]
    if not pool.spec.container_spec.command:
        command = context.settings.commands.get(image_of(pool), ())
        return [*((pool.at("containerSpec"), word) for word in command), *spoken]
    return spoken


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _fields(folder: Path, file: str, name: str) -> dict[str, ast.AnnAssign]:
    """The fields of a class and its bases; read, not imported, as the trainer's libraries need not be on a laptop.

    Raises:
        LookupError: the class, or one of its bases, stands in no file that can be read.
    """
    body = ast.parse(_text(folder / file)).body
    imported = {alias.name: one.module for one in body if isinstance(one, ast.ImportFrom) for alias in one.names}
    found = {one.name: one for one in body if isinstance(one, ast.ClassDef)}[name]
    fields: dict[str, ast.AnnAssign] = {}
    for base in map(ast.unparse, reversed(found.bases)):  # of two that have a field, the first counts
        module = imported.get(base)
        fields |= _fields(folder, f"{module.replace('.', '/')}.py" if module else file, base)
    own = [one for one in found.body if isinstance(one, ast.AnnAssign)]
    return fields | {one.target.id: one for one in own if isinstance(one.target, ast.Name)}


def _metrics(folder: Path) -> tuple[str, ...]:
    """The keys of the dictionary that metrics() returns, and the loss; none without such a function."""
    body = ast.parse(_text(folder / MODEL)).body
    functions = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == "metrics"]
    keys = [key for one in functions for node in ast.walk(one) if isinstance(node, ast.Dict) for key in node.keys]
    return (*(str(_plain(key)) for key in keys if isinstance(key, ast.Constant)), "loss") if functions else ()


def _taken(annotation: ast.expr, folder: Path) -> tuple[str, ...]:
    """What a field takes: the name of a kind of number, its choices, with None if that is one; else ()."""
    match annotation:
        case ast.Name(id=name) if name in NUMBERS:
            return (name,)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            constants = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return tuple(str(_plain(one)) for one in constants)
        case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Call(func=ast.Name(id="module_in"), args=[place])])):
            return _modules(folder / "trainer" / str(_plain(place)))
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            taken = _taken(left, folder)
            return (*taken, "None") if taken else ()
    return ()


def _modules(folder: Path) -> tuple[str, ...]:
    """The modules in a folder, by name."""
    return tuple(sorted(one.name for one in pkgutil.iter_modules([str(folder)])))


def _plain(value: ast.expr | None) -> object:
    return value.value if isinstance(value, ast.Constant) else None

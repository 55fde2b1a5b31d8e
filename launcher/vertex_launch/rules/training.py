"""Rules for the flags of the project's own trainer, in pools that run trainer.task or trainer.evaluator.

The rules read the flags from the trainer's source files. The "Flags and metrics" section of launcher/docs/events.md
describes the code that the rules recognize. The rules ignore all other code. The rules don't run the trainer, because
it requires its framework and takes seconds to start.
"""

import ast
import contextlib
import functools
import itertools
import operator
import pkgutil
import re
from collections.abc import Mapping
from datetime import date
from importlib import metadata
from pathlib import Path

from vertex_launch.errors import Finding, Findings, did_you_mean
from vertex_launch.job.contract import EVALUATOR, REFERENCE, TRAINER
from vertex_launch.job.spec import CHIEF, EVALUATORS, Job, Pool
from vertex_launch.rules.containers import Flag, flags, image_of, is_ours, prebuilt_name, untagged, words
from vertex_launch.rules.rule import Declare, Project, RuleContext, rule, rule_of_pool, text

MODULES = (TRAINER, EVALUATOR)
SCORES = "trainer/evaluator/__main__.py"  # exists if trainer.task doesn't evaluate in pool 3
NUMBERS = {"int": (int, "a whole number"), "float": (float, "a number")}
BOOLEAN = ("bool",)
FLAGS, CONFIG = "trainer/config.py", "Config"  # the file, and the class whose fields are flags
STRATEGIES = "trainer/parallel"  # the folder of the strategies' modules
COMMON, OWN = "StrategyFlags", "Flags"  # classes of flags: of all strategies, in strategy.py, and of one module
ELASTIC = "min_replicas"  # the flag of a strategy that continues without lost replicas
NO_COMPILER = re.compile(r"^ARG COMPILE=\s*$", re.MULTILINE)
MODEL = "trainer/model.py"  # its function metrics() returns the metrics other than the loss
FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu")
# Flags that may differ between the replicas of a job, as listed in OWN of the trainer's config.py.
UNCOMPARED = (
    *("anyway", "collective_timeout", "data", "data_processes"),
    *("profile", "rehearse_export", "rollcall_timeout"),
)


def project(folder: Path, today: date) -> Project:
    """Return the project in a folder. Treat unreadable source files as missing."""
    fields: Mapping[str, ast.AnnAssign] = {}
    of_each: Mapping[str, Mapping[str, ast.AnnAssign]] = {}
    with contextlib.suppress(LookupError, RecursionError):
        core = _fields(folder, FLAGS, CONFIG)
        of_each = _of_each_strategy(folder, core)
        fields = functools.reduce(operator.or_, of_each.values(), core)
    takers = {flag: tuple(name for name, own in of_each.items() if flag in own) for flag in fields}
    return Project(
        today,
        flags={name: _plain(field.value) for name, field in fields.items()},
        takers={flag: names for flag, names in takers.items() if len(names) < len(of_each)},
        values={name: taken for name, field in fields.items() if (taken := _taken(field.annotation, folder))},
        dockerfile=text(folder / "Dockerfile"),
        trains=any((folder / "trainer").rglob("*.py")),
        metrics=_metrics(folder),
        versions=_versions(),
        folder=folder,
    )


def _versions() -> dict[str, str]:
    """Return the versions of the installed frameworks. Local jobs run with these versions."""
    installed = {}
    for name in FRAMEWORKS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name.partition("-")[0]] = metadata.version(name).partition("+")[0]
    return installed


def runs_trainer(pool: Pool | None, context: RuleContext) -> bool:
    """Return whether a pool runs the project's own trainer, in an image that might contain the project."""
    if pool is None or not context.project.trains:
        return False
    packaged = pool.spec.python_package_spec.python_module in MODULES
    return packaged or (has_project(pool, context) and any(word in MODULES for _, word in words(pool, context)))


def has_project(pool: Pool, context: RuleContext) -> bool:
    """Return whether a pool's image might contain the project. Google's training images can contain any project."""
    ours, image = context.settings.image, image_of(pool)
    return not ours or untagged(image) == untagged(ours) or bool(prebuilt_name(context, image))


def _flags(pool: Pool, context: RuleContext) -> list[Flag]:
    """Return the flags that a pool passes to the project's trainer. Ignore the flags of other programs."""
    program = words(pool, context) if runs_trainer(pool, context) else []
    start = next((number for number, (_, word) in enumerate(program) if word in MODULES), 0)
    return [*flags(program[start:])]


def flag_of(pool: Pool, name: str, context: RuleContext) -> tuple[str, str]:
    """Return a flag's location and value in a pool's args or, if it's missing, the args' location and its default."""
    default = pool.at(pool.task, "args"), str(context.project.flags.get(name))
    return {flag.name: (flag.place, flag.value) for flag in _flags(pool, context)}.get(name, default)


def number_of(job: Job, name: str, context: RuleContext) -> int:
    """Return the whole number that a flag of the chief's trainer has. Return 0 if the number is unknown."""
    value = _of_chief(job, name, context)
    return int(value) if re.fullmatch("[0-9]{1,18}", value) else 0


def is_elastic(job: Job, context: RuleContext) -> bool:
    """Return whether the chief's strategy continues without lost replicas, because it has the flag --min-replicas."""
    return _of_chief(job, "strategy", context) in context.project.takers.get(ELASTIC, ())


def _of_chief(job: Job, name: str, context: RuleContext) -> str:
    """Return the value of a flag of the chief's trainer. If the chief doesn't run the trainer, return an empty text."""
    return flag_of(job.chief, name, context)[1] if job.chief and runs_trainer(job.chief, context) else ""


def _spelled(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"


rule_of_flags = Declare(Job, "Every replica exits immediately with a usage message.")
FLAG_RULES = ("flag-unknown", "flag-value")


@rule_of_flags("flag-unknown", "warning", "documented", "trainer")
def flags_known(job: Job, context: RuleContext) -> Findings:
    """A flag in a pool's args should be a flag of the project's trainer. The trainer's flags are the fields of the
    Config class and of the selected --strategy's Flags class."""
    for pool in job.pools if context.project.flags else ():
        _, strategy = flag_of(pool, "strategy", context)
        for flag in _flags(pool, context):
            yield from _flag_known(flag, strategy, context.project)


def _flag_known(flag: Flag, strategy: str, project: Project) -> Findings:
    name = flag.name.partition(".")[0]
    if project.values.get(without := name.removeprefix("no_"), BOOLEAN) == BOOLEAN:
        name = without
    takers = project.takers.get(name, ())
    if takers and strategy in {*project.values["strategy"]} - {*takers}:
        fault = f"--strategy {strategy} doesn't support {_spelled(flag.name)} (supported by {', '.join(takers)})"
        yield Finding(flag.place, fault, "remove the flag, or choose one of these strategies")
    if not {name, flag.name} & {*project.flags, "help"}:
        fault = f"{FLAGS} doesn't define the flag {_spelled(flag.name)}"
        yield Finding(flag.place, fault, did_you_mean(flag.name, map(_spelled, project.flags)))


@rule_of_flags("flag-value", "warning", "documented", "trainer")
def flags_valid(job: Job, context: RuleContext) -> Findings:
    """A flag's value should be valid for its field in Config. A number field requires a number, a choice field requires
    one of its choices, and a switch doesn't accept a value."""
    for flag in (flag for pool in job.training_pools for flag in _flags(pool, context)):
        if not REFERENCE.search(flag.value) and (wrong := why_refused(flag.name, flag.value, context.project)):
            yield Finding(flag.place, *wrong)


def why_refused(name: str, value: str, project: Project) -> tuple[str, str] | None:
    """Return why the trainer rejects a flag value, and the solution.

    Return None if the trainer might accept the value.
    """
    name = name.replace("-", "_")
    taken, flag = project.values.get(name, ()), _spelled(name)
    if taken == BOOLEAN:
        is_alone = not value or value.startswith("--")  # the next flag
        wrong = (
            f'{flag} has the value "{value}", but it doesn\'t accept one',
            f"write only {flag} or {_spelled(f'no_{name}')}",
        )
        return None if is_alone else wrong
    if not taken or any(_fits(value, one) for one in taken):
        return None
    named = " or ".join(NUMBERS[one][1] if one in NUMBERS else one for one in taken)
    cure = f"write {named}" if NUMBERS.keys() & {*taken} else did_you_mean(value, taken)
    return f'{flag} is "{value}", which {FLAGS} doesn\'t accept', cure


def _fits(value: str, taken: str) -> bool:
    """Return whether a value equals a choice or, for a number type, whether Python can parse it."""
    if taken not in NUMBERS:
        return value == taken
    with contextlib.suppress(ValueError):
        return NUMBERS[taken][0](value) is not None
    return False


@rule("flag-compile", "warning", "documented", "dockerfile")
def compiler_there(job: Job, context: RuleContext) -> Findings:
    """If a job sets --compile, its image should contain a compiler. The Dockerfile installs a compiler if it contains
    ARG COMPILE=1.
    Otherwise: Every replica fails immediately, because the trainer compiles kernels on the machine that trains."""
    for pool in job.training_pools if NO_COMPILER.search(context.project.dockerfile) else ():
        for flag in _flags(pool, context):
            if flag.name == "compile" and is_ours(context, image_of(pool)):
                fault = "the image doesn't contain a compiler, unless it was built with --build-arg=COMPILE=1"
                yield Finding(
                    flag.place,
                    fault,
                    "write ARG COMPILE=1 in the Dockerfile and rebuild the image, or remove --compile",
                )


@rule("flags-differ", "error", "documented", "trainer")
def flags_alike(job: Job, context: RuleContext) -> Findings:
    """Pools 0 and 1 must have the same values for all flags that affect the samples or the parameter updates.
    Otherwise: Every replica exits at the roll call, before the first step."""
    return _unlike(job, context, compared=True)


@rule("flags-vary", "warning", "documented", "trainer")
def other_flags_alike(job: Job, context: RuleContext) -> Findings:
    """Pools 0 and 1 should have the same values for flags that the roll call doesn't compare, such as --data and
    timeouts.
    Otherwise: If the replicas read different samples, the job fails before the first step. Differences in other flags
    affect only how long replicas wait."""
    return _unlike(job, context, compared=False)


def _unlike(job: Job, context: RuleContext, compared: bool) -> Findings:
    """Yield the flags whose values differ between training pools.

    `compared` selects either the flags that the roll call compares or all other flags.
    """
    for first, second in itertools.pairwise(pool for pool in job.training_pools if runs_trainer(pool, context)):
        there, here = ({flag.name: flag for flag in _flags(pool, context)} for pool in (first, second))
        missing, given = Flag(second.at(second.task, "args"), "", "missing"), here | there
        for name in given:
            flag, other = here.get(name, missing), there.get(name, missing).value or "set"
            values = {_value(name, flags, context) for flags in (here, there)}
            is_compared = "anyway" not in given and name not in UNCOMPARED and None not in values
            alike = (flag.value or "set") == other or (len(values) == 1 and None not in values)
            if is_compared == compared and not alike:
                fault = f"{_spelled(name)} is {flag.value or 'set'} in this pool, but {other} in pool {first.index}"
                yield Finding(flag.place, fault, "set the same flags in both pools")


def _value(name: str, flags: Mapping[str, Flag], context: RuleContext) -> object:
    """Return a flag's value from a pool's flags or the trainer's defaults. Return None if the value is unknown."""
    default = context.project.flags.get(name)
    if context.project.values.get(name) == BOOLEAN:
        return name in flags or bool(default)
    value = flags[name].value if name in flags else default
    with contextlib.suppress(ValueError, TypeError):
        return float(str(value))
    return value if name in context.project.flags else None


@rule("batch-small", "warning", "documented", "trainer")
def batch_for_all(job: Job, context: RuleContext) -> Findings:
    """The global batch should have at least one sample for each GPU in pools 0 and 1.
    Otherwise: Every replica fails immediately, because some GPUs wouldn't receive a sample."""
    place, batch, world, default = _batch(job, context)
    if 0 < batch < world:
        fault = f"a global batch of {batch} is too small for {world} GPUs{default}"
        yield Finding(place, fault, f"use {world} or more")


@rule("batch-uneven", "warning", "documented", "trainer")
def batch_even(job: Job, context: RuleContext) -> Findings:
    """The global batch should be divisible by the number of GPUs in pools 0 and 1.
    Otherwise: The job runs, but in every step, some GPUs wait for other GPUs that process one more sample."""
    place, batch, world, default = _batch(job, context)
    if batch > world and batch % world:
        lower = batch // world * world
        fault = f"a global batch of {batch} can't be divided evenly among {world} GPUs{default}"
        yield Finding(place, fault, f"use {lower} or {lower + world}")


def _batch(job: Job, context: RuleContext) -> tuple[str, int, int, str]:
    """Return the location and size of the chief's global batch, the number of GPUs that share it, and a note.

    The returned size is 0 if the batch size is unknown or if one model is split across several GPUs. If the batch size
    is the default, the note names its source.
    """
    served = any(pool.serves for pool in job.pools)  # then the chief gets no part of the batch
    sharing = [pool for pool in job.training_pools if not (served and pool.index == CHIEF)]
    world = sum(pool.replica_count * max(pool.accelerator_count, 1) for pool in sharing)
    # A batch can't be divided if a replica count is 0 or negative; `has_replicas` reports that.
    counted = bool(sharing) and all(pool.replica_count > 0 for pool in sharing)
    if job.chief is None or not (counted and runs_trainer(job.chief, context)):
        return "", 0, world, ""
    (place, batch), (_, strategy) = (flag_of(job.chief, name, context) for name in ("global_batch", "strategy"))
    each_a_model = strategy not in ("pipeline", "tensor", "model_parallel")
    known = each_a_model and re.fullmatch("[0-9]{1,18}", batch)
    default = f", and {batch} is the default in {FLAGS}" if place.endswith("args") else ""
    return place, int(batch) if known else 0, world, default


@rule_of_pool("evaluator-count", "warning", "documented", "trainer")
def one_evaluator(pool: Pool, context: RuleContext) -> Findings:
    """If pool 3 runs the trainer, it should have only one replica, which evaluates all checkpoints.
    Otherwise: All evaluators except the first exit immediately with an error, and the job fails."""
    if pool.index == EVALUATORS and pool.replica_count > 1 and runs_trainer(pool, context):
        fault = f"the pool has {pool.replica_count} evaluators, but one evaluates all checkpoints"
        yield Finding("replicaCount", fault, "set it to 1")


@rule("evaluator-program", "error", "documented", "trainer")
def evaluator_scores(job: Job, context: RuleContext) -> Findings:
    """If pool 3 runs the trainer, it must run trainer.evaluator, because trainer.task trains only in pools 0 and 1.
    Otherwise: The replica in pool 3 exits immediately with an error, and the job fails."""
    for pool in job.pools:
        if pool.index == EVALUATORS and runs_trainer(pool, context) and context.project.text(SCORES):
            package = (pool.at("pythonPackageSpec.pythonModule"), pool.spec.python_package_spec.python_module)
            for place in (place for place, word in (package, *words(pool, context)) if word == TRAINER):
                yield Finding(place, f"{TRAINER} doesn't evaluate checkpoints", f"run {EVALUATOR} in pool 3")


def statements(path: Path) -> list[ast.stmt]:
    """Return the statements of a Python file. Return an empty list if the file can't be read."""
    return _parsed(text(path))


@functools.cache
def _parsed(code: str) -> list[ast.stmt]:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        return ast.parse(code).body
    return []


def _fields(folder: Path, file: str, name: str) -> dict[str, ast.AnnAssign]:
    """Return the fields of a class and its base classes.

    Don't import the class, because importing it would require a framework. Raises LookupError if a file with the class
    or one of its base classes can't be read.
    """
    body = statements(folder / file)
    imports = [(one.module, alias.name) for one in body if isinstance(one, ast.ImportFrom) for alias in one.names]
    files = {imported: f"{module.replace('.', '/')}.py" for module, imported in imports if module}
    modules = {imported: f"{module.replace('.', '/')}/{imported}.py" for module, imported in imports if module}
    found = {one.name: one for one in body if isinstance(one, ast.ClassDef)}[name]
    fields: dict[str, ast.AnnAssign] = {}
    for base in map(ast.unparse, reversed(found.bases)):  # the field of the first base applies
        module, _, base = base.rpartition(".")
        fields |= _fields(folder, modules[module] if module else files.get(base, file), base)
    return fields | {ast.unparse(one.target): one for one in found.body if isinstance(one, ast.AnnAssign)}


def _of_each_strategy(folder: Path, core: dict[str, ast.AnnAssign]) -> dict[str, dict[str, ast.AnnAssign]]:
    """Return each strategy's flag fields, keyed by strategy. Raises LookupError, as `_fields` does."""
    common = f"{STRATEGIES}/strategy.py"
    core = core | (_fields(folder, common, COMMON) if text(folder / common) else {})
    files = _strategies(folder / STRATEGIES)
    return {
        name: core | (_fields(folder, str(file.relative_to(folder)), OWN) if f"\nclass {OWN}(" in text(file) else {})
        for name, file in files.items()
    }


def _metrics(folder: Path) -> tuple[str, ...]:
    """Return "loss" and the keys of the dictionaries that metrics() returns. Return () if the keys aren't literals."""
    functions = [one for one in statements(folder / MODEL) if isinstance(one, ast.FunctionDef)]
    nodes = [node for one in functions if one.name == "metrics" for node in ast.walk(one)]
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    keys = [key for value in returned for key in (value.keys if isinstance(value, ast.Dict) else [None])]
    names = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return (*names, "loss") if returned and len(names) == len(keys) else ()


def _taken(annotation: ast.expr, folder: Path) -> tuple[str, ...]:
    """Return the values that a field accepts: a number type, bool, or choices. Return () if the values are unknown."""
    match annotation:
        case ast.Name(id=name) if name in (*NUMBERS, *BOOLEAN):
            return (name,)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            return tuple(str(_plain(one)) for one in getattr(choices, "elts", [choices]))
        case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Call(func=ast.Name(id="module_in"), args=[place])])):
            return tuple(_strategies(folder / "trainer" / str(_plain(place))))
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            taken = _taken(left, folder)
            return (*taken, "None") if taken else ()
    return ()


def _strategies(folder: Path) -> dict[str, Path]:
    """Return the source file of each strategy, keyed by strategy."""
    files = {
        one.name: folder / one.name / "__init__.py" if one.ispkg else folder / f"{one.name}.py"
        for one in pkgutil.iter_modules([str(folder)])
    }
    return {name: files[name] for name in sorted(files) if "\nSTRATEGY = " in text(files[name])}


def _plain(value: ast.expr | None) -> object:
    return value.value if isinstance(value, ast.Constant) else None

"""Programs that start processes: torchrun, accelerate launch, and Python alone where a machine has several GPUs."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from vertex_launch.rules.containers import words
from vertex_launch.rules.image_contents import module_files
from vertex_launch.rules.rule import Finding, Findings, Job, Pool, RuleContext, rule
from vertex_launch.rules.training import has_project

OURS = "trainer.cluster.run"
FILE = "trainer/cluster/run.py"
PYTHON = r"(?:\S*/)?python[\d.]*(?: -[A-Zabd-ln-z]+)*"
LAUNCHERS = {
    "torchrun": re.compile(rf"(?:(?:\S*/)?torchrun|{PYTHON} -m torch\.distributed\.(?:run|launch))(?= |$)"),
    "accelerate launch": re.compile(
        rf"(?:(?:\S*/)?accelerate[ -]launch|{PYTHON} -m accelerate\.commands\.launch)(?= |$)"
    ),
    "python": re.compile(rf"{PYTHON}(?= -m \S| [^-]\S*\.py)"),
}
SCRIPT = re.compile(r" (?:(?:-m|--module)[ =](\S+)|(\S+\.py))(?= |$)")
# Flags by which a launcher knows the other machines, and what gives them: RANK and WORLD_SIZE count machines here.
TOLD = {
    "torchrun": ({"nnodes", "rdzv_endpoint"}, {"nnodes", "node_rank", "master_addr"}),
    "accelerate launch": ({"config_file"}, {"num_machines", "machine_rank", "main_process_ip"}),
}
FLAGS = {
    "torchrun": "--nproc-per-node={gpus} --nnodes=$(WORLD_SIZE) --node-rank=$(RANK) --master-addr=$(MASTER_ADDR)"
    " --master-port=$(MASTER_PORT)",
    "accelerate launch": "--num_processes={processes} --num_machines=$(WORLD_SIZE) --machine_rank=$(RANK)"
    " --main_process_ip=$(MASTER_ADDR) --main_process_port=$(MASTER_PORT)",
}
IMPORTS = re.compile(
    r"^[ \t]*(?:import|from) (?:torch|accelerate|lightning|pytorch_lightning|transformers)\b", re.MULTILINE
)
STARTS = re.compile("launch|spawn|subprocess|multiprocessing|torchrun")  # processes of its own


class Launch(NamedTuple):
    """The start of a pool's processes: the launcher, the names of its flags, the script or -m MODULE, with its args."""

    launcher: str
    flags: frozenset[str]
    script: str
    args: str


def _launches(job: Job, context: RuleContext) -> Iterator[tuple[Pool, Launch]]:
    """Every way in which several machines start their processes, with the first pool that has it."""
    pools = job.training_pools if sum(pool.replica_count for pool in job.training_pools) > 1 else ()
    first = {launch: pool for pool in reversed(pools) if (launch := _launch(pool, context))}
    return ((pool, launch) for launch, pool in reversed(first.items()))


def _launch(pool: Pool, context: RuleContext) -> Launch | None:
    """Return how a pool starts its processes; None where that cannot be told, as behind a shell."""
    text = " ".join(word for _, word in words(pool, context))
    for launcher, pattern in LAUNCHERS.items():
        if start := pattern.match(text):
            script = SCRIPT.search(text, start.end())
            own = text[start.end() : script.start() if script else None]
            names = re.findall(r"(?<= --)[\w-]+", own) + re.findall(
                r"PET_(\w+)", " ".join(one.name for one in pool.env)
            )
            run = "SCRIPT" if script is None else f"-m {script[1]}" if script[1] else script[2]
            args = text[script.end() :] if script else " ARGS"
            return Launch(launcher, frozenset(name.replace("-", "_").lower() for name in names), run, args)
    return None


def _cure(job: Job, pool: Pool, launch: Launch, context: RuleContext) -> str:
    """The line to write, with the project's own launcher where it has one, else with flags for the other machines."""
    if has_project(pool, context) and context.project.text(FILE):
        return f"write python -m {OURS} {launch.script}{launch.args}"
    gpus, launcher = pool.accelerator_count, "torchrun" if launch.launcher == "python" else launch.launcher
    processes = sum(one.replica_count * max(one.accelerator_count, 1) for one in job.training_pools)
    flags = FLAGS[launcher].format(gpus=max(gpus, 1), processes=processes)
    return f"write {launcher} {flags} {launch.script}{launch.args}"


@rule("launcher-machines", "warning", "inferred", "launchers")
def machines_together(job: Job, context: RuleContext) -> Findings:
    """A launcher is told of the other machines of its job; where the project has trainer.cluster.run, that starts all.
    Otherwise: Each machine trains by itself, and all write the same files; or a lost process ends the job for good."""
    for pool, launch in _launches(job, context):
        told = TOLD.get(launch.launcher, ())
        # The one process that accelerate starts on one GPU reads the service's RANK and WORLD_SIZE itself.
        separates = launch.launcher == "torchrun" or pool.accelerator_count > 1
        alone = separates and told and not any(names <= launch.flags for names in told)
        cure = _cure(job, pool, launch, context)
        if alone or (told and OURS in cure):
            fault = "is not told of the other machines, so each trains alone"
            lost = "ends with code 1, a user's error, where a process is lost, so nothing starts again"
            yield Finding(words(pool, context)[0][0], f"{launch.launcher} {fault if alone else lost}", cure)


@rule("launcher-gpus", "warning", "inferred", "launchers")
def gpus_used(job: Job, context: RuleContext) -> Findings:
    """A script with PyTorch is started once for each GPU of its machines, unless it starts processes itself.
    Otherwise: One GPU of each machine trains, or each machine by itself, and the others are paid for and idle."""
    for pool, launch in _launches(job, context):
        files = [launch.script] if launch.script.endswith(".py") else module_files(launch.script.removeprefix("-m "))
        source = "".join(map(context.project.text, files)) if has_project(pool, context) else ""
        alone = launch.launcher == "python" and IMPORTS.search(source) and not STARTS.search(source)
        if alone and pool.accelerator_count > 1:
            fault = f"python starts one process on a machine of {pool.accelerator_count} GPUs"
            yield Finding(words(pool, context)[0][0], fault, _cure(job, pool, launch, context))

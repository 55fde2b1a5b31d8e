"""Rules for launchers, such as torchrun, that start the processes of a pool. programs.yaml lists the launchers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vertex_launch.job.contract import expand, expanded
from vertex_launch.job.spec import CHIEF
from vertex_launch.rules import shells
from vertex_launch.rules.containers import OF_SEVERAL, words
from vertex_launch.rules.image_contents import module_files
from vertex_launch.rules.rule import Finding, Findings, Job, Pool, RuleContext, rule
from vertex_launch.rules.training import has_project
from vertex_launch.settings import Texts

OURS = "trainer.cluster.run"
FILE = "trainer/cluster/run.py"
NOTHING: Mapping[str, Any] = {"roles": {}, "usual": {}, "variables": "-"}
LAUNCHERS = {name: {**NOTHING, **row} for name, row in shells.FACTS["launchers"].items()}
SEVERAL, GROUPS = shells.FACTS["several"], shells.FACTS["groups"]
PYTHON = rf"{shells.PYTHON.pattern}(?: -[WX] \S+| -[A-Zabd-ln-z]+)*"
OPTION = re.compile(r" --?([A-Za-z][\w-]*)(?:[ =]((?!-)(?:\$\([^)]{0,99}\)|\S)+))?")
SCRIPT = re.compile(r" (?:(?:-m|--module)[ =](?P<module>\S+)|(?P<file>[^\s-]\S*\.py))(?= |$)")
NUMBER = re.compile("[0-9]{1,9}")
# A machine's own address, or a variable or a command that returns this address.
LOOPBACK = re.compile(
    r"(?:\w+://)?(?:localhost|127\.[0-9.]+|0\.0\.0\.0|\[?::1\]?|\$\(HOSTNAME\)|\$\(hostname[^)]*\))(?::[0-9]*)?"
)
# A machine's own address in Python code.
OWN_ADDRESS = re.compile(r"""(?:tcp://|TCPStore\(["']|MASTER_ADDR["']?\]?\s*[:=]\s*["'])(?:localhost|127\.0\.0\.1)\b""")
GIVEN_FIRST = re.compile(r"MASTER_ADDR.* not in |\*\*os\.environ")  # code that checks what the service has set


class Launch(NamedTuple):
    """A launcher's command line, and the pools that run it."""

    pools: list[Pool]
    place: str  # in the first pool
    launcher: str
    said: Texts  # option values, by role or by option name with underscores
    run: str  # the script, or -m and a module, with its arguments
    files: Sequence[str]  # the possible files of the script
    known: Texts  # the known variables
    machines: int  # in the job
    total: int  # GPUs in the job

    @property
    def gpus(self) -> int:
        """The number of GPUs in each machine."""
        return self.pools[0].accelerator_count

    @property
    def is_single(self) -> bool:
        """True if `accelerate launch` starts only one process on each machine and doesn't use torchrun."""
        several = self.gpus > 1 or self.said.keys() & {*SEVERAL}
        return self.launcher == "accelerate launch" and ("cpu" in self.said or not several)

    @property
    def is_told(self) -> bool:
        """True if the launcher's options describe several machines, even incorrectly."""
        if "hosts" in LAUNCHERS[self.launcher]["roles"].values():
            return "hosts" in self.said
        alone = "standalone" in self.said or self.said.get("machines", "1") == "1"
        return "config_file" in self.said or not (alone or self.is_single)

    @property
    def uses_ssh(self) -> bool:
        """True if the launcher starts processes on other machines over SSH."""
        by_deepspeed = "use_deepspeed" in self.said and self.said.get("deepspeed_multinode_launcher") != "standard"
        return self.is_told and "no_ssh" not in self.said and (by_deepspeed or "hosts" in self.said)


def launches(job: Job, context: RuleContext) -> list[Launch]:
    """Return the launchers that pools 0 and 1 run. Exclude commands that a script might skip."""
    pools, found = job.training_pools, dict[tuple[object, ...], Launch]()
    machines = sum(pool.replica_count for pool in pools)
    total = sum(pool.replica_count * pool.accelerator_count for pool in pools)
    service = {name: f"$({name})" for name in OF_SEVERAL} | {"WORLD_SIZE": str(machines)} if machines > 1 else {}
    for pool in pools:
        for place, line, known in _programs(pool, context, service):
            if parsed := _parse(line, known, pool.accelerator_count):
                launch = Launch([], place, *parsed, known, machines, total)
                key = (pool.accelerator_count, line, *launch.said.items())
                found.setdefault(key, launch).pools.append(pool)  # two pools with the same error are one finding
    return [*found.values()]


def _programs(pool: Pool, context: RuleContext, service: Texts) -> Iterator[tuple[str, str, Texts]]:
    """Yield the location, command line, and known variables of each program that a pool always runs."""
    said, known = words(pool, context), {**expanded(pool.env, {}), **service}
    text, lines = shells.inline(said), [[expand(word, known) for _, word in said]]
    if text and not text.is_python:
        script = shells.read(text.text, known)
        known = {**script.variables} if script else known
        lines = [[*line] for node, line in (script.commands if script else ()) if not shells.is_conditional(node)]
    for line in lines if said else ():
        at = shells.start(line)  # after programs such as env, which may set more variables
        more = dict(word.split("=", 1) for word in line[:at] if "=" in word)
        yield text.place if text else said[0][0], " ".join(line[at:]), {**known, **more}


def _parse(line: str, known: Texts, gpus: int) -> tuple[str, Texts, str, Sequence[str]] | None:
    """Return a command line's launcher, options, script, and script files, or None if it has no launcher."""
    for name, row in LAUNCHERS.items():
        if start := re.match(rf"(?:\S*/)?(?:{row['starts'].format(python=PYTHON)})(?= |$)", line):
            script = SCRIPT.search(line, start.end())
            options = OPTION.findall(line[start.end() : script.start() if script else None] if row["roles"] else "")
            prefix, roles = row["variables"], {key.replace("-", "_"): role for key, role in row["roles"].items()}
            said = {key.removeprefix(prefix).lower(): known[key] for key in known if key.startswith(prefix)}
            said |= {option.replace("-", "_"): value for option, value in options}
            told = said | {roles[key]: value for key, value in said.items() if key in roles}
            usual = {role: value.format(gpus=gpus) for role, value in row["usual"].items() if "config_file" not in said}
            files = [] if script is None else module_files(script["module"]) if script["module"] else [script["file"]]
            return name, usual | told, line[script.start() + 1 :] if script else "SCRIPT", files
    return None


def _whole_line(launch: Launch, context: RuleContext) -> str:
    """Return the solution: a command that uses the project's own launcher, or options for all machines."""
    if has_project(launch.pools[0], context) and context.project.text(FILE):
        return f"write python -m {OURS} {launch.run}"
    if instead := LAUNCHERS[launch.launcher].get("instead"):
        return str(instead)
    name = launch.launcher if "line" in LAUNCHERS[launch.launcher] else "torchrun"
    several = next((f"--{one}" for one in SEVERAL if one in launch.said), "--multi_gpu")
    several += " --deepspeed_multinode_launcher=standard" * (several == "--use_deepspeed")
    gpus, total, row = max(launch.gpus, 1), max(launch.total, launch.machines), LAUNCHERS[name]
    known = {*SEVERAL, "standalone", *row["roles"].values(), *(option.replace("-", "_") for option in row["roles"])}
    others = {key: value for key, value in launch.said.items() if key not in known and "rdzv" not in key}
    kept = [f"--{key}={value} " if value else f"--{key} " for key, value in others.items()]
    options = row["line"].format(gpus=gpus, total=total, several=several)
    return f"write {name} {''.join(kept) if name == launch.launcher else ''}{options} {launch.run}"


@rule("launcher-machines", "warning", "inferred", "launchers")
def machines_together(job: Job, context: RuleContext) -> Findings:
    """A launcher's options should describe all machines of the job. In a generated project, the trainer.cluster.run
    launcher sets these options.
    Otherwise: Each machine trains alone and writes the same files, or the job doesn't restart after a process fails."""
    several = [one for one in launches(job, context) if one.machines > 1 and not one.is_single]
    found = [one for one in several if one.launcher != "python"]
    by_ssh = [pool for one in found if one.uses_ssh for pool in one.pools]
    for launch in found:
        cure, fault = _whole_line(launch, context), ""
        if not launch.is_told:
            fault = "isn't configured for the other machines, so each machine trains alone"
        elif launch.uses_ssh and all(pool in by_ssh for pool in job.training_pools):
            fault = "starts processes on other machines over SSH, but replicas don't run an SSH server"
        elif OURS in cure:
            fault = "exits with code 1 (user error) when a process fails, so Vertex AI doesn't restart the job"
        if fault:
            yield Finding(launch.place, f"{launch.launcher} {fault}", cure)


@rule("launcher-options", "warning", "inferred", "launchers")
def options_right(job: Job, context: RuleContext) -> Findings:
    """A launcher's options should match the number of machines, the number of GPUs, each machine's rank, and the
    chief's address.
    Otherwise: Machines train alone, wait for machines that never start, leave GPUs idle, or start processes that don't
    find a GPU."""
    found = launches(job, context)
    for launch in (one for one in found if one.is_told or one.machines == 1):
        for role, fault, right in _wrong(launch, found):
            names = [name for name, its in LAUNCHERS[launch.launcher]["roles"].items() if its == role]
            name = next((one for one in names if one.replace("-", "_") in launch.said), names[0])
            yield Finding(launch.place, f"--{name} is {launch.said[role]}{fault}", f"write --{name}={right}")


def _wrong(launch: Launch, found: list[Launch]) -> Iterator[tuple[str, str, str]]:
    """Yield the role, the problem, and the correct value of each wrong option."""
    said, count = launch.said, launch.machines
    low, _, high = said.get("machines", "").partition(":")
    if NUMBER.fullmatch(low) and int(low) != count:
        late = ", so the job can start without late machines" if high and int(low) < count else ""
        yield "machines", late or f", but pools 0 and 1 have {count} machines", "$(WORLD_SIZE)" if count > 1 else "1"
    for role, right, where in (("each", launch.gpus, "the machine has"), ("total", launch.total, "pools 0 and 1 have")):
        if launch.gpus and NUMBER.fullmatch(said.get(role, "")) and int(said[role]) != right:
            yield role, f", but {where} {right} GPUs", str(right)
    if launch.uses_ssh or count == 1:
        return
    alike = [one for one in found if (one.launcher, one.said.get("rank")) == (launch.launcher, said.get("rank"))]
    several = sum(pool.replica_count for one in alike for pool in one.pools)
    if several > 1 and NUMBER.fullmatch(said.get("rank", "")) and said.get("rdzv_backend", "static") == "static":
        yield "rank", f" on {several} machines", "$(RANK)"
    if LOOPBACK.fullmatch(address := said.get("address", "")) and launch.pools[-1].index != CHIEF:
        port = ":$(MASTER_PORT)" if re.search("[^:]:[0-9]+$", address) else ""
        yield "address", ", which is each machine's own address", f"$(MASTER_ADDR){port}"


@rule("launcher-group", "warning", "inferred", "launchers")
def one_group(job: Job, context: RuleContext) -> Findings:
    """A script should start one process per GPU, and all processes should form one process group. All processes should
    connect to the chief, and the script's library should be configured for several processes.
    Otherwise: Each machine trains alone or waits for connections to its own address, or GPUs are billed but idle."""
    for launch in (one for one in launches(job, context) if one.machines > 1):
        if found := _no_group(launch, "".join(map(context.project.text, launch.files))):
            yield Finding(launch.place, found[0], found[1] or _whole_line(launch, context))


def _no_group(launch: Launch, code: str) -> tuple[str, str] | None:
    """Return why the processes don't form one process group, and the solution.

    Return None if the processes might form a group. The solution is "" if the script requires another launcher command.
    """
    own = not GIVEN_FIRST.search(code) and OWN_ADDRESS.search(code)
    by_env = any(one.name == "MASTER_ADDR" for one in launch.pools[0].env)  # reported by `env_free`
    if own or (LOOPBACK.fullmatch(launch.known.get("MASTER_ADDR", "")) and not by_env):
        fault = f"{own[0] if own else 'MASTER_ADDR in the script'} is each machine's own address"
        return fault, "use the value of MASTER_ADDR that the service sets"
    if launch.is_single and "cpu" not in launch.said:
        cure = "" if launch.gpus else f"write accelerate launch --cpu {launch.run}"
        return "accelerate launch starts one process on each machine, but they don't form a process group", cure
    for group in GROUPS:
        here = launch.launcher in group.get("starts", LAUNCHERS) and min(launch.gpus, 2) in group.get("gpus", (0, 1, 2))
        told = launch.is_single or any(one in launch.known or one in code for one in group["unless"])
        if here and not told and re.search(group["code"], code, re.MULTILINE):
            return group["fault"].format(gpus=launch.gpus), group.get("cure", "")
    return None

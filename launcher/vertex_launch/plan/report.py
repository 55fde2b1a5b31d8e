"""Formats a plan as tables, and compares several plans side by side."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vertex_launch.facts.catalog import FACTS
from vertex_launch.plan.advice import SAME
from vertex_launch.plan.allreduce_cost import AllReduce
from vertex_launch.plan.failures import START, Failures
from vertex_launch.plan.formatting import duration, seconds, size, usd
from vertex_launch.plan.memory import RESERVED
from vertex_launch.plan.planner import Needs, Option, Plan
from vertex_launch.plan.pools import differ, training
from vertex_launch.plan.reducers import step_seconds

UNKNOWN, MISSING = "?", "Memory and time aren't known"
NEEDED = ("machines", "GPUs", "per hour")  # rows of a comparison that are known even for Needs
PAYS = {True: "yes", False: "no", None: "it depends"}
NUMBERS = ("Gbps", "total", "$/h", "a machine sends", "takes", "a step takes")  # columns
PARTS = ("parameters", "gradients", "optimizer", "activations")


def report(plan: Needs) -> RenderableType:
    """Return the report on a plan, from the job's machines to the verdict on reducers."""
    trials = f": {plan.trials.count} trials, {plan.at_once} in parallel; one trial is shown" if plan.trials else ""
    title = f"{plan.name} in {plan.region}" if plan.region else plan.name
    parts: list[RenderableType] = [Text(f"{title}{trials}\n", style="bold")]
    parts += [_machines_table(plan), Text(), *map(Text, _machines(plan)), Text(_persistent(plan))]
    parts += _section("Required quota", _quotas(plan))
    uncertain = f" These facts are uncertain: {', '.join(plan.uncertain)}." if plan.uncertain else ""
    facts = Text(f"\nAll facts date from {plan.compiled}; their sources are in {FACTS}.{uncertain}")
    if not isinstance(plan, Plan):
        return Group(*parts, *_section("One step", [f"{MISSING}: {plan.missing}."]), facts)
    parts += _section("One step", _step(plan))
    if plan.machines.count > 1:
        parts += [Text(), _all_reduce_table(plan), Text(), *map(Text, _all_reduce(plan))]
    parts += _section("Reduction servers", _verdicts(plan))
    parts += _section("Lost machines", _failures(plan.failures)) if plan.failures else ()
    return Group(*parts, facts)


def comparison(plans: Sequence[Needs], console: Console) -> RenderableType:
    """Return tables with a column for each plan.

    If one table is too wide for the console, return several tables. Missing information is listed below the tables.
    """
    table = _table("", *(plan.name for plan in plans))
    for title, cell in COMPARED.items():
        table.add_row(title, *(UNKNOWN if plan.missing and title not in NEEDED else cell(plan) for plan in plans))
    needed = console.measure(table, options=console.options.update(max_width=sys.maxsize)).maximum
    if len(plans) == 1 or needed <= console.width:
        return Group(table, *(Text(f"\n{plan.name}: {MISSING}: {plan.missing}.") for plan in plans if plan.missing))
    half = (len(plans) + 1) // 2
    return Group(comparison(plans[:half], console), Text(), comparison(plans[half:], console))


def _machines_table(plan: Needs) -> Table:
    table = _table("pool", "machines", "GPUs of each", "Gbps", "total", "$/h")
    for row in plan.rows:
        gpus = f"{row.gpus} x {row.accelerator}" if row.gpus else "-"
        speed = (UNKNOWN, UNKNOWN) if row.gbps is None else (f"{row.gbps:g}", f"{row.count * row.gbps:,g}")
        cost = UNKNOWN if row.usd is None else f"{row.usd:,.2f}"
        table.add_row(f"{row.pool} {row.role}", str(row), gpus, *speed, cost)
    return table


def _machines(plan: Needs) -> Iterator[str]:
    for kind, row in {row.machine_type: row for row in plan.rows if row.fabric_gbps}.items():
        yield f"The GPUs of an {kind} have their own network ({row.fabric_gbps:g} Gbps) for GPUDirect's NCCL plug-in."
        yield f"The template's image doesn't contain this plug-in, so times assume TCP at the full {row.gbps:g} Gbps."
    if plan.price is None:
        yield "At least one price is unknown. Add it under [prices] in vertex.toml."
        return
    trials = f", for {plan.at_once} trials of {usd(plan.price.usd / plan.at_once)}" if plan.trials else ""
    yield f"Total: {usd(plan.price.usd)} per hour{trials} ({plan.price.certainty}: {plan.price.source})."
    if plan.region and "list price" in plan.price.source and f"in {plan.region} " not in plan.price.source:
        yield f"Prices in {plan.region} differ. Add yours under [prices] in vertex.toml."


def _persistent(plan: Needs) -> str:
    """Return a sentence that explains when a persistent resource is worthwhile.

    Source: Vertex AI, "Overview of persistent resources", mid-2026.
    """
    if plan.persistent:
        return f"The machines belong to persistent resource {plan.persistent}, which is billed while it exists."
    wait = "With a persistent resource, jobs don't wait for machines, but idle machines cost the same"
    return f"{wait}. It's worthwhile if the machines' idle time between jobs is shorter than a job's wait for machines."


def _quotas(plan: Needs) -> Iterator[str]:
    for quota in plan.quotas:
        yield f"{quota.amount:6,}  {quota.metric or f'{quota.what}: unknown metric; see the Google Cloud console'}"
    yield f"To see the project's quota in each region:\n  {plan.quota_command}"


def _step(plan: Plan) -> Iterator[str]:
    gradients, work = f"{size(plan.gradient_bytes)} of gradients", plan.workload
    if work:
        yield f"{work.parameters / 1e6:,.1f} million parameters, {gradients}, {work.global_batch:,} samples per step."
    else:
        yield f"{gradients}."
    if differ(plan.rows):
        yield "The machine types differ. GPUs process equal parts of the batch, and all GPUs wait for the slowest one."
    if plan.compute is None:
        yield "The compute time of a step is unknown. Set it with --step-seconds."
    else:
        yield f"The computation of a step takes {seconds(plan.compute.seconds)} ({plan.compute.how})."
        if not plan.compute.counts:
            why = "Kernel launches, not computation, dominate such a short step, so this estimate isn't used"
            yield f"{why}. Measure a step and set --step-seconds."
    if plan.memory:
        fits = "the job fits" if plan.memory.fits else f"the job doesn't fit; {plan.remedy}"
        sizes = [f"{name}{', about' * (name == 'activations')} {size(getattr(plan.memory, name))}" for name in PARTS]
        parts = ", ".join((*sizes, f"reserved {size(RESERVED)}"))
        yield f"Each GPU needs {size(plan.memory.total)} of its {size(plan.memory.card)}: {fits}. ({parts})"


def _all_reduce_table(plan: Plan) -> Table:
    """Return a table of the all-reduce methods: the rings and each set of reducers."""
    rings = plan.advised.all_reduce
    ways = {f"ring of {plan.machines.members}": rings.ring, "hierarchical ring": rings.hierarchical}
    for option in plan.options:
        where = f", {_where(plan, option)}" if len(plan.options) > 1 else ""
        ways[f"{option.sizing}{where}"] = option.all_reduce.reducers
    if rings.gpudirect:
        ways["ring with GPUDirect's plug-in"] = rings.gpudirect
    table = _table("all-reduce by", "a machine sends", "takes", "a step takes")
    for way, all_reduce in ways.items():
        table.add_row(way, size(all_reduce.bytes), seconds(all_reduce.seconds), _step_time(plan, all_reduce))
    return table


def _all_reduce(plan: Plan) -> Iterator[str]:
    sizing, rule = plan.advised.sizing, "the cheapest reducers that together send as much data as pools 0 and 1"
    yield f"{sizing} are {rule}; with {math.ceil(sizing.break_even) - 1} or fewer, the ring is faster."
    yield plan.hierarchical_ring
    yield "All-reduce times are network transfer times. They are a lower bound that excludes latency."
    yield from about_the_speed(plan)


def about_the_speed(plan: Plan) -> Iterator[str]:
    """Yield a sentence that compares the job's speed with that of one machine.

    If the speed is unknown, don't yield a sentence.
    """
    if (speed := plan.over_one) is None:
        return
    rate = COMPARED["samples per second"](plan)
    rates = (
        f"process {rate} samples/s, and one machine processes {plan.alone:,.0f}"
        if plan.alone
        else "compared with one machine"
    )
    verdict = "they are slower than one machine" if speed < SAME else "they aren't faster than one machine"
    if speed >= 1 / SAME:
        verdict = f"{speed:.2g} times the speed"
    elif plan.advised.verdict.pays:
        verdict = "the file doesn't have enough reducers"
    yield f"These {plan.machines.count} machines {rates}: {verdict}."


def _verdicts(plan: Plan) -> Iterator[str]:
    """Yield the verdict on the reducers in the job file.

    If the verdict on the recommended reducers differs, yield it, too.
    """
    texts = {option.verdict.text: f"Reducers {_where(plan, option)}. " for option in plan.options}
    for text, whose in texts.items():
        yield f"{whose if len(texts) > 1 else ''}{text}"


def _failures(found: Failures) -> Iterator[str]:
    run = found.run
    if run.machines > 1:
        count = f"{found.count:.2g}" if found.count >= 0.01 else "less than 0.01"
        yield (
            f"If each machine fails once in {found.hours_between:,g} hours, the {run.machines} training machines fail"
            f" {count} times in {duration(run.seconds)} on average."
        )
        yield (
            f"If all machines restart, a failure costs {duration(found.restart_seconds)}. We assume that a new machine"
            f" starts in {START / 60:.0f} min. The machines then repeat half of the steps between two checkpoints."
        )
        yield (
            f"With --strategy elastic, a failure costs {duration(found.elastic_seconds)} on average, because the other"
            f" machines continue. They wait only for the chief, so set --quorum-timeout to at least {START:.0f}."
        )
    yield found.verdict.text


def _where(plan: Plan, option: Option) -> str:
    return "in the file" if option is plan.present else "recommended"


def _step_time(plan: Plan, all_reduce: AllReduce) -> str:
    return seconds(step_seconds(plan.known_compute, all_reduce.seconds)) if plan.known_compute else UNKNOWN


def _memory(plan: Plan) -> str:
    if plan.memory is None:
        return UNKNOWN
    return f"{size(plan.memory.total)} of {size(plan.memory.card)}{'' if plan.memory.fits else ', too much'}"


COMPARED: dict[str, Callable[[Any], str]] = {
    "machines": lambda plan: "\n".join(
        [*map(str, plan.rows), *[f"in each of {plan.at_once} trials"] * bool(plan.trials)]
    ),
    "GPUs": lambda plan: str(plan.at_once * sum(row.count * row.gpus for row in training(plan.rows))),
    "per hour": lambda plan: usd(plan.price.usd) if plan.price else UNKNOWN,
    "GPU memory": _memory,
    "computing": lambda plan: seconds(plan.known_compute) if plan.known_compute else UNKNOWN,
    "all-reduce": lambda plan: seconds(plan.all_reduce.seconds),
    "step": lambda plan: _step_time(plan, plan.all_reduce),
    "samples per second": lambda plan: f"{plan.here.samples_per_second:,.0f}" if plan.here else UNKNOWN,
    "one machine": lambda plan: f"{plan.alone:,.0f}" if plan.alone else UNKNOWN,
    "per million samples": lambda plan: usd(plan.here.usd_per_million) if plan.here and plan.price else UNKNOWN,
    "its reducers pay off": lambda plan: (
        f"{plan.present.sizing}: {PAYS[plan.present.verdict.pays]}" if plan.present else "-"
    ),
    "recommended reducers": lambda plan: f"{plan.advised.sizing}: {PAYS[plan.advised.verdict.pays]}",
}


def _section(title: str, sentences: Iterable[str]) -> tuple[Text, ...]:
    return Text(f"\n{title}", style="bold"), *map(Text, sentences)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=column in NUMBERS)
    return table

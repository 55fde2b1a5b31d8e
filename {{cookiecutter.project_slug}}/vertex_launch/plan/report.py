"""A plan as tables for people, and plans side by side."""

import sys
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vertex_launch.plan.formatting import seconds, size, usd
from vertex_launch.plan.memory import RESERVED, Memory
from vertex_launch.plan.planner import Option, Plan
from vertex_launch.plan.pools import differ, training
from vertex_launch.plan.reducers import AllReduce, step_seconds

UNKNOWN = "?"
SAME = 0.95  # a speed over another above which they are about the same
PAYS = {True: "yes", False: "no", None: "it depends"}


def report(plan: Plan) -> RenderableType:
    """Everything, from the machines to the verdict."""
    parts: list[RenderableType] = [Text(f"{_title(plan)}\n", style="bold"), machines(plan), Text()]
    parts += [Text(line) for line in _about_machines(plan)]
    parts += [Text("\nQuota that it needs", style="bold"), *(Text(line) for line in _about_quotas(plan))]
    parts += [Text("\nOne step", style="bold"), *(Text(line) for line in _about_the_step(plan))]
    if plan.machines.count > 1:
        parts += [Text(), sums(plan), Text(), *(Text(line) for line in _about_the_sums(plan))]
    parts += [Text("\nReduction servers", style="bold"), *(Text(line) for line in _about_the_reducers(plan))]
    parts += [Text(f"\n{_about_the_facts(plan)}")]
    return Group(*parts)


def _title(plan: Plan) -> str:
    title = f"{plan.name} in {plan.region}"
    if plan.trials is None:
        return title
    return f"{title}: {plan.trials.count} trials, {plan.trials.at_once} at once, and this is one of them"


def machines(plan: Plan) -> Table:
    """The pools."""
    table = _table("pool", "machines", "GPUs of each", "Gbps", "in all", "$/h")
    for row in plan.rows:
        gpus = f"{row.gpus} x {row.accelerator}" if row.gpus else "-"
        speed = (UNKNOWN, UNKNOWN) if row.gbps is None else (f"{row.gbps:g}", f"{row.count * row.gbps:,g}")
        cost = UNKNOWN if row.usd is None else f"{row.usd:,.2f}"
        table.add_row(f"{row.pool} {row.role}", f"{row.count} x {row.machine_type}", gpus, *speed, cost)
    return table


def sums(plan: Plan) -> Table:
    """The ways to sum the gradients: two rings, and each set of reducers."""
    table = _table("gradients summed", "a machine sends", "takes", "a step takes")
    rings = plan.advised.sums
    ways = [
        (f"by a ring of {plan.machines.members}", rings.ring),
        ("in machines, then by a ring", rings.hierarchical),
        *((f"by {_named(plan, option)}", option.sums.reducers) for option in plan.options),
    ]
    for way, found in ways:
        table.add_row(way, size(found.bytes), seconds(found.seconds), _step(plan, found))
    return table


def comparison(plans: Sequence[Plan], console: Console) -> RenderableType:
    """One column for each plan, in as many tables as the width asks for."""
    table = _table("", *(plan.name for plan in plans))
    for title, cell in COMPARED:
        table.add_row(title, *(cell(plan) for plan in plans))
    needed = console.measure(table, options=console.options.update(max_width=sys.maxsize)).maximum
    if len(plans) == 1 or needed <= console.width:
        return table
    half = (len(plans) + 1) // 2
    return Group(comparison(plans[:half], console), Text(), comparison(plans[half:], console))


def _about_quotas(plan: Plan) -> Iterator[str]:
    for quota in plan.quotas:
        yield f"{quota.amount:6,}  {quota.metric or f'{quota.what}: the metric is not known, look in the console'}"
    yield f"What the project has of it, in each region:\n  {plan.quota_command}"


def _about_machines(plan: Plan) -> Iterator[str]:
    for kind, gbps in {row.machine_type: row.fabric_gbps for row in plan.rows if row.fabric_gbps}.items():
        yield f"The GPUs of an {kind} have {gbps:g} Gbps of their own beside these, by GPUDirect."
    if plan.price is None:
        yield "Some price is not known here; yours can stand in vertex.toml, below [prices]."
        return
    trials = f", for {plan.at_once} trials of {usd(plan.price.usd / plan.at_once)}" if plan.trials else ""
    yield f"In all {usd(plan.price.usd)} per hour{trials} ({plan.price.certainty}: {plan.price.source})."
    if "list price" in plan.price.source and f"in {plan.region} " not in plan.price.source:
        yield f"Prices of {plan.region} differ; yours can stand in vertex.toml, below [prices]."


def _about_the_step(plan: Plan) -> Iterator[str]:
    if plan.workload:
        about = f"{plan.workload.parameters / 1e6:,.1f} million parameters, {size(plan.gradient_bytes)} of gradients"
        yield f"{about}, {plan.workload.global_batch:,} samples."
    else:
        yield f"{size(plan.gradient_bytes)} of gradients."
    if differ(plan.rows):
        yield "The machines differ: each GPU has an equal share of the batch, and all wait for the slowest."
    if plan.compute:
        yield f"Computing takes {seconds(plan.compute.seconds)} ({plan.compute.how})."
        if not plan.compute.counts:
            rules = (
                "So short a step is ruled by starting kernels, not by computing, so this estimate counts for nothing"
            )
            yield f"{rules}; measure one, for --step-seconds."
    else:
        yield "How long computing takes is not known; --step-seconds says it."
    if plan.memory:
        fits = "it fits" if plan.memory.fits else f"it does not fit; {plan.remedy}"
        yield f"A GPU needs {size(plan.memory.total)} of its {size(plan.memory.card)}: {fits}. {_parts(plan.memory)}"


def _parts(found: Memory) -> str:
    parts = (
        ("parameters", found.parameters),
        ("gradients", found.gradients),
        ("optimizer", found.optimizer),
        ("activations, about", found.activations),
        ("reserved", RESERVED),
    )
    return f"({', '.join(f'{name} {size(value)}' for name, value in parts)})"


def _about_the_sums(plan: Plan) -> Iterator[str]:
    wanted = _set(plan.advised)
    rule = "the least costly reducers that together send what pools 0 and 1 send"
    yield f"{wanted} are {rule}; with fewer than {plan.advised.sizing.break_even:.1f} the ring is faster."
    yield "The times of sums are those of the wire, a lower bound without latency."
    yield from about_the_speed(plan)


def about_the_speed(plan: Plan) -> Iterator[str]:
    """Whether the machines are worth it, where that is known."""
    if plan.here is None or plan.alone is None:
        return
    together, rates = plan.here.samples_per_second, f"{_rate(plan)} samples/s, one alone {plan.alone:,.0f}"
    gain = together / plan.alone
    if gain < SAME:
        verdict = "they are slower than one"
    elif gain < 1 / SAME:
        verdict = "they are no faster than one"
    else:
        verdict = f"{gain:.2g} times as many"
    yield f"These {plan.machines.count} machines train at best {rates}: {verdict}."


def _about_the_reducers(plan: Plan) -> Iterator[str]:
    """The verdict on those in the file, then on those advised, unless it is the same."""
    texts = dict.fromkeys(option.verdict.text for option in plan.options)
    if len(texts) == 1:
        yield from texts
        return
    for option in plan.options:
        yield f"Those {'in the file' if option is plan.present else 'advised'}. {option.verdict.text}"


def _about_the_facts(plan: Plan) -> str:
    uncertain = f" Uncertain among them: {', '.join(plan.uncertain)}." if plan.uncertain else ""
    return f"All facts are of {plan.compiled}, with their sources in vertex_launch/machines.yaml.{uncertain}"


def _step(plan: Plan, found: AllReduce) -> str:
    return seconds(step_seconds(plan.known_compute, found.seconds)) if plan.known_compute else UNKNOWN


def _needs(plan: Plan) -> str:
    if plan.memory is None:
        return UNKNOWN
    return f"{size(plan.memory.total)} of {size(plan.memory.card)}{'' if plan.memory.fits else ', too much'}"


def _rate(plan: Plan) -> str:
    return f"{plan.here.samples_per_second:,.0f}" if plan.here else UNKNOWN


def _usd_per_million(plan: Plan) -> str:
    return usd(plan.here.usd_per_million) if plan.here and plan.price else UNKNOWN


def _named(plan: Plan, option: Option) -> str:
    """A set of reducers, and where it stands if there are two."""
    if len(plan.options) == 1:
        return _set(option)
    return f"{_set(option)}, {'in the file' if option is plan.present else 'advised'}"


def _set(option: Option) -> str:
    return f"{option.sizing.count} x {option.sizing.machine_type}"


def _machines(plan: Plan) -> str:
    trials = [f"in each of {plan.at_once} trials"] if plan.trials else []
    return "\n".join([*(f"{row.count} x {row.machine_type}" for row in plan.rows), *trials])


def _pays(option: Option | None) -> str:
    return f"{_set(option)}: {PAYS[option.verdict.pays]}" if option else "-"


COMPARED: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("machines", _machines),
    ("GPUs", lambda plan: str(plan.at_once * sum(row.count * row.gpus for row in training(plan.rows)))),
    ("per hour", lambda plan: usd(plan.price.usd) if plan.price else UNKNOWN),
    ("memory of a GPU", _needs),
    ("computing", lambda plan: seconds(plan.known_compute) if plan.known_compute else UNKNOWN),
    ("sum of the gradients", lambda plan: seconds(plan.summed.seconds)),
    ("step", lambda plan: _step(plan, plan.summed)),
    ("samples per second", _rate),
    ("a million samples", _usd_per_million),
    ("its reducers pay", lambda plan: _pays(plan.present)),
    ("those advised", lambda plan: _pays(plan.advised)),
)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in columns:
        numbers = column.startswith(("Gbps", "in all", "$", "a machine", "takes", "a step"))
        table.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    return table

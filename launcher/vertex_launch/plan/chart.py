"""Draws the scaling curves of a plan as a PNG or SVG file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from vertex_launch.plan.planner import Plan
from vertex_launch.plan.scaling import COUNTS, KNEE, Curve, Point

STYLES: dict[str, dict[str, Any]] = {  # dashes and markers also differ, for color-blind readers
    "ring": {"linestyle": "-", "marker": "o", "color": "#1b4f8f"},
    "hierarchical ring": {"linestyle": "--", "marker": "s", "color": "#b3541e"},
    "reducers": {"linestyle": ":", "marker": "^", "color": "#2b7a3d"},
}
PANELS: tuple[tuple[str, Callable[[Point], float]], ...] = (
    ("samples per second", lambda point: point.samples_per_second),
    ("efficiency", lambda point: point.efficiency),
    ("USD per million samples", lambda point: point.usd_per_million),
)


def save(plan: Plan, path: Path) -> None:
    """Save a chart of throughput, efficiency, and cost as a function of the number of machines."""
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for ax, (label, value) in zip(axes, PANELS, strict=True):
        for curve in plan.curves:
            _draw(ax, curve, value)
        ax.axvline(plan.machines.count, color="0.5", linewidth=0.8, linestyle="-.")
        if plan.here:
            ax.plot(plan.here.machines, value(plan.here), "k*", markersize=10, label="this job in its file")
        _label(ax, label)
    axes[0].set_yscale("log")
    axes[1].set_ylim(0, 1.05)
    axes[1].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[2].set_ylim(0, 1.05 * axes[2].get_ylim()[1])
    axes[1].axhline(KNEE, color="0.6", linewidth=0.8)
    axes[0].legend(title="all-reduce by", loc="upper left")
    figure.suptitle(
        f"{plan.name} on 1 to {COUNTS[-1]:,} machines of the same type, with the same batch size per machine\n"
        f"Open marker: the largest number of machines with at least {KNEE:.0%} efficiency."
        f" All-reduce times don't include latency.\n{plan.hierarchical_ring}",
        fontsize=10,
    )
    figure.savefig(path, dpi=120)


def _draw(ax: Axes, curve: Curve, value: Callable[[Point], float]) -> None:
    style = STYLES[curve.way]
    machines = [point.machines for point in curve.points]
    ax.plot(machines, [value(point) for point in curve.points], label=curve.way, markersize=4, **style)
    if curve.knee is not curve.points[-1]:
        ax.plot(curve.knee.machines, value(curve.knee), markersize=13, fillstyle="none", **style)


def _label(ax: Axes, label: str) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(COUNTS[::2])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    ax.set_xlabel("training machines")
    ax.set_ylabel(label)
    ax.grid(color="0.9")

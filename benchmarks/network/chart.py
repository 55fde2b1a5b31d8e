"""Draw the chart of measured and predicted times. Requires matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from page import Row

# Text isn't converted to paths, so the file is small and searchable. The same rows produce the same file.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "planner-proof",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
PREDICTED = {"color": "black", "linewidth": 1.1, "zorder": 2}
MEASURED = {"linestyle": "none", "markeredgecolor": "black", "markersize": 6.5, "zorder": 3}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel for each rate and number of machines. Each panel shows seconds by reducers."""
    rates = sorted({row.cell.mbit for row in rows})
    machines = sorted({row.cell.machines for row in rows})
    with matplotlib.rc_context(STYLE):
        shape = {"figsize": (2.1 * len(machines) + 0.6, 2.3 * len(rates) + 0.9), "layout": "constrained"}
        figure, axes = pyplot.subplots(len(rates), len(machines), sharex=True, sharey="row", squeeze=False, **shape)
        for line, rate in zip(axes, rates, strict=True):
            for panel, count in zip(line, machines, strict=True):
                fill(panel, [row for row in rows if (row.cell.mbit, row.cell.machines) == (rate, count)])
            line[0].set_ylabel(f"seconds at {rate} Mbit/s")
            line[0].set_ylim(bottom=0)  # of the whole row, after all panels have data
        for panel, count in zip(axes[0], machines, strict=True):
            panel.set_title(f"{count} machines", fontsize=10)
        for panel in axes[-1]:
            panel.set_xlabel("number of reducers")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
        figure.savefig(path, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        pyplot.close(figure)


def fill(panel: Axes, rows: Sequence[Row]) -> None:
    """Fill one panel. The ring has no reducers, so the measurement of the ring is at the left."""
    counts = [row.cell.reducers for row in rows if row.cell.reducers]
    for row in rows:
        if not row.cell.reducers:
            panel.axhline(row.seconds.predicted, linestyle=(0, (5, 3)), label="ring, predicted", **PREDICTED)
            panel.plot(0, row.seconds.measured, "D", markerfacecolor="black", label="ring, measured", **MEASURED)
    predicted = [row.seconds.predicted for row in rows if row.cell.reducers]
    measured = [row.seconds.measured for row in rows if row.cell.reducers]
    panel.plot(counts, predicted, label="reducers, predicted", **PREDICTED)
    panel.plot(counts, measured, "o", markerfacecolor="white", label="reducers, measured", **MEASURED)
    panel.set_xticks([row.cell.reducers for row in rows], [str(row.cell.reducers or "ring") for row in rows])
    panel.grid(axis="y", color="0.88", linewidth=0.7)
    panel.set_axisbelow(True)

"""Reports a run: log lines, curves, goodput, traces."""

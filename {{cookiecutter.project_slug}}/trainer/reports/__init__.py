"""Reports the progress of a run in log lines, curves, goodput, and traces."""

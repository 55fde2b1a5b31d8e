"""Reports a run's progress as log lines, TensorBoard curves, goodput, and profiler traces."""

"""The training program, which reads CLUSTER_SPEC and flags, trains a model, and exports it."""

from absl import logging

# On import, grain warns about a profiler that only JAX users have.
logging.set_verbosity(logging.ERROR)

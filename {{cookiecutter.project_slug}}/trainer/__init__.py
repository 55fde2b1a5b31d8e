"""The program in the container: from CLUSTER_SPEC and flags to a trained, exported model."""

from absl import logging

# grain warns at import about a profiler that only JAX users have.
logging.set_verbosity(logging.ERROR)

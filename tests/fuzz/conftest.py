"""How many cases a fuzzing test runs: the same few in the suite, which so never fails by chance; many in a proof."""

import os

from hypothesis import HealthCheck, settings

# No limit of time, as the machine may be loaded, and no file of examples.
COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
settings.register_profile("suite", COMMON, max_examples=150, derandomize=True)
settings.register_profile("proofs", COMMON, max_examples=20_000)
settings.load_profile(os.environ.get("FUZZ", "suite"))

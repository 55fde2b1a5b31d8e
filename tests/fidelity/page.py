"""Writes docs/launcher/fidelity.md from a run of all usages: python -m tests.fidelity.page."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.fidelity import datasets, experiments, jobs, models, outside, pipelines, tensorboards, tuning
from tests.launch.vertex import Service, service

THEMES = (jobs, tuning, pipelines, models, datasets, experiments, tensorboards, outside)


def serving(folder: Path) -> AbstractContextManager[Service]:
    return service(folder, "--grace-seconds", "0", "--capacity", "64")

"""The usages of all themes, and how they are run."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from launcher.tests.vertex import Service, service
from tests.fidelity import (
    datasets,
    experiments,
    gcloud,
    jobs,
    logging,
    models,
    outside,
    pipelines,
    replicas,
    rest,
    storage,
    tensorboards,
    tuning,
)
from tests.fidelity.usages import Usage, of_module

THEMES = (
    *(jobs, replicas, tuning, pipelines, models, datasets, experiments, tensorboards),
    *(storage, logging, gcloud, rest, outside),
)


def serving(folder: Path) -> AbstractContextManager[Service]:
    """Start the service for all usages, one after the other."""
    return service(folder, "--grace-seconds", "0.5", "--capacity", "64")


def usages() -> list[Usage]:
    return [usage for theme in THEMES for usage in of_module(theme)]


def run(vertex: Service) -> Iterator[str]:
    """Yield the verdict on each usage; what the script raises makes it wrong."""
    for usage in usages():
        try:
            yield f"not run: {usage.skipped}" if usage.skipped else usage.verdict(vertex)
        except Exception as error:
            print(f"{usage.id}: {error}", file=sys.stderr)
            yield "wrong: its script fails"

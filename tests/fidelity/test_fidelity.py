"""Usages that others have published, against one local Vertex; docs/launcher/fidelity.md lists them."""

from collections.abc import Iterator

import pytest

from tests.fidelity.page import THEMES, serving
from tests.fidelity.usages import Usage, of_module
from tests.launch.vertex import Service

USAGES = [usage for theme in THEMES for usage in of_module(theme)]


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("vertex")) as running:
        yield running


@pytest.mark.parametrize("usage", USAGES, ids=lambda usage: usage.id)
def test_a_usage_has_the_verdict_that_the_page_says(vertex: Service, usage: Usage) -> None:
    if usage.skipped:
        pytest.skip(usage.skipped)
    usage.verdict(vertex)

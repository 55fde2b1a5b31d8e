"""Usages that others have published, against one local Vertex; launcher/docs/fidelity.md lists them."""

from collections.abc import Iterator

import pytest

from launcher.tests.vertex import Service
from tests.fidelity.page import PAGE, page, row, verdicts
from tests.fidelity.themes import serving, usages
from tests.fidelity.usages import Usage


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("vertex")) as running:
        yield running


# gcloud takes a second for each command, and launcher/tests/test_gcloud.py tries it at each change.
CASES = [pytest.param(one, id=one.id, marks=[pytest.mark.proof] * one.id.startswith("gcloud")) for one in usages()]


@pytest.mark.parametrize("usage", CASES)
def test_a_usage_has_the_verdict_of_the_page(vertex: Service, usage: Usage) -> None:
    if usage.skipped:
        pytest.skip(usage.skipped)
    assert row(usage, usage.verdict(vertex)) in PAGE.read_text(encoding="utf-8")


def test_the_page_lists_all_usages_and_no_others() -> None:
    assert len(verdicts()) == len(usages())
    assert page(verdicts()) == PAGE.read_text(encoding="utf-8")

"""The local Vertex's Cloud Logging, page by page: no page reads more than its part of a log."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pytest

from launcher.tests.running import DEADLINE, SOURCE
from launcher.tests.vertex import Json, Service, custom_job, service
from vertex_launch.job.job_resource import id_of

LINES = 20_000  # ten times as many as one page reads
LATER = datetime.now(UTC) + timedelta(hours=1)  # than the line of the job itself


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex")) as running:
        yield running


@pytest.fixture(scope="module")
def job(vertex: Service) -> str:
    """The id of a job that has printed many lines."""
    name = vertex.create(custom_job("true"))
    vertex.wait(name, "SUCCEEDED")
    add(vertex, id_of(name), range(LINES))
    return id_of(name)


def add(vertex: Service, job: str, numbers: range) -> None:
    with (vertex.state_dir / f"jobs/{job}/log.jsonl").open("a") as file:
        for number in numbers:
            entry = {"timestamp": time(number), "replica": "workerpool0-0", "line": f"line {number}"}
            file.write(f"{json.dumps(entry)}\n")


def time(number: int) -> str:
    """Three lines have the same time."""
    return f"{LATER + timedelta(milliseconds=number // 3):%Y-%m-%dT%H:%M:%S.%f}Z"


def page(vertex: Service, job: str, more: str = "", **query: Any) -> Json:
    body = {"resourceNames": ["projects/p"], "filter": f'resource.labels.job_id="{job}" {more}', **query}
    status, answer = vertex.call("POST", "/v2/entries:list", body)
    assert status == 200, answer
    return answer


def pages(vertex: Service, job: str, more: str = "", **query: Any) -> Iterator[list[int]]:
    """The numbers of each page's lines."""
    token = "first"
    while token:
        answer = page(vertex, job, more, **query, **({} if token == "first" else {"pageToken": token}))
        yield [int(entry["jsonPayload"]["message"].split()[1]) for entry in answer["entries"]]
        token = answer.get("nextPageToken", "")


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_have_each_line_once_in_either_order(vertex: Service, job: str, order: str) -> None:
    sizes, lines = [], list[int]()
    for numbers in pages(vertex, job, f'timestamp>="{time(0)}"', orderBy=f"timestamp {order}", pageSize=1000):
        sizes.append(len(numbers))
        lines += numbers
    assert lines[:LINES] == sorted(range(LINES), reverse=order == "desc")
    assert set(sizes[: LINES // 1000]) == {1000}


@pytest.mark.parametrize(("order", "numbers"), [("asc", range(12000, 12300)), ("desc", range(12299, 11999, -1))])
def test_a_filter_by_time_reads_from_there(vertex: Service, job: str, order: str, numbers: range) -> None:
    bounds = f'timestamp>="{time(12000)}" AND (timestamp<"{time(12300)}" OR timestamp<="{time(12200)}")'
    (first,) = pages(vertex, job, bounds, orderBy=f"timestamp {order}", pageSize=1000)
    assert first == [*numbers]


def test_a_filter_as_gcloud_goes_on_by_reads_what_follows_a_line_of_the_same_time(vertex: Service, job: str) -> None:
    second = page(vertex, job, f'timestamp="{time(15000)}"')["entries"][1]
    at, id = second["timestamp"], second["insertId"]
    bound = f'((timestamp="{at}" AND insertId>"{id}") OR timestamp>"{at}") AND timestamp<"{time(15006)}"'
    assert [*pages(vertex, job, bound)] == [[15002, 15003, 15004, 15005]]


def test_pages_that_find_nothing_yet_are_empty_and_have_a_token(vertex: Service, job: str) -> None:
    found = [*pages(vertex, job, f'jsonPayload.message="line {LINES - 1}"')]
    assert found[0] == []
    assert len(found) > 2
    assert [*chain(*found)] == [LINES - 1]


def test_a_page_token_stays_good_while_lines_are_added(vertex: Service) -> None:
    name = vertex.create(custom_job("true"))
    vertex.wait(name, "SUCCEEDED")
    add(vertex, id_of(name), range(9))
    oldest, newest = (pages(vertex, id_of(name), orderBy=f"timestamp {order}", pageSize=6) for order in ("asc", "desc"))
    assert [next(oldest), next(newest)] == [[0, 1, 2, 3, 4, 5], [8, 7, 6, 5, 4, 3]]
    add(vertex, id_of(name), range(9, 12))
    assert [*oldest] == [[6, 7, 8, 9, 10, 11], []]
    assert [*newest] == [[2, 1, 0]]


def test_entries_that_clients_wrote_are_merged_with_lines_by_their_time(vertex: Service) -> None:
    name = vertex.create(custom_job("true"))
    vertex.wait(name, "SUCCEEDED")
    job = id_of(name)
    add(vertex, job, range(9))
    entry = {"logName": "projects/p/logs/mine", "resource": {"type": "ml_job", "labels": {"job_id": job}}}
    sent = [
        {**entry, "jsonPayload": {"message": "line 70"}, "timestamp": time(30)},
        {**entry, "jsonPayload": {"message": "line 10"}, "timestamp": time(3), "insertId": "0"},
    ]
    assert vertex.call("POST", "/v2/entries:write", {"entries": sent})[0] == 200
    assert [*pages(vertex, job, orderBy="timestamp asc", pageSize=5)] == [[0, 1, 2, 10, 3], [4, 5, 6, 7, 8], [70]]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (
            {"pageToken": "WzEsMl0="},
            "pageToken: the token isn't valid for this list; request the first page without a token",
        ),
        ({"pageToken": "~"}, "pageToken: the token isn't valid for this list; request the first page without a token"),
        ({"orderBy": "severity"}, 'orderBy: "severity" isn\'t a valid order; use timestamp desc'),
    ],
)
def test_what_is_no_page_is_refused(vertex: Service, query: Json, sentence: str) -> None:
    status, answer = vertex.call("POST", "/v2/entries:list", {"resourceNames": ["projects/p"], **query})
    assert (status, answer["error"]["message"]) == (400, sentence)


def test_pages_of_a_log_whose_clock_was_set_back_end_and_repeat_no_line(vertex: Service) -> None:
    name = vertex.create(custom_job("true"))
    vertex.wait(name, "SUCCEEDED")
    for numbers in (range(300, 600), range(300), range(600, 900)):
        add(vertex, id_of(name), numbers)
    seen = [*chain(*pages(vertex, id_of(name), pageSize=100))]
    assert len(seen) == len(set(seen))
    assert {*range(600, 900)} < set(seen)


def test_a_written_entry_has_a_time(vertex: Service) -> None:
    status, answer = vertex.call("POST", "/v2/entries:write", {"entries": [{"timestamp": "soon"}]})
    assert (status, answer["error"]["message"]) == (
        400,
        'timestamp: "soon" isn\'t a valid time; use a time such as 2026-11-23T12:30:00Z',
    )


@pytest.mark.parametrize("words", ["LINE 4321", "LINE 432", "workerpool0-0"])
def test_words_alone_are_looked_for_in_all_of_an_entry(vertex: Service, job: str, words: str) -> None:
    found = [*chain(*pages(vertex, job, f'"{words}" timestamp>="{time(0)}"', orderBy="timestamp", pageSize=1000))]
    expected = [number for number in range(LINES) if words.lower() in f"workerpool0-0 line {number}"]
    assert found[: len(expected)] == expected


@pytest.mark.parametrize("pattern", [f"^line (7|{LINES - 1})$", "^li.*e 7$|19999", "^l.ne .*7$", "^line .?7$"])
def test_logs_grep_finds_what_a_pattern_means_among_many_lines(vertex: Service, job: str, pattern: str) -> None:
    command = [sys.executable, "-m", "vertex_launch", "logs", job, "--grep", pattern]
    environ = os.environ | {"VERTEX_ENDPOINT": vertex.endpoint, "PYTHONPATH": str(SOURCE)}
    output = subprocess.check_output(command, cwd=vertex.folder, env=environ, text=True, timeout=DEADLINE)
    expected = [number for number in range(LINES) if re.search(pattern, f"line {number}")]
    assert [line.partition("] ")[2] for line in output.splitlines()] == [f"line {number}" for number in expected]

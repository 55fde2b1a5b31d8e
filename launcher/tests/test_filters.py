from typing import Any

import pytest

from launcher.tests.running import deadline
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.filters import page, predicate

FIELDS = (
    "name",
    "displayName",
    "state",
    "createTime",
    "labels",
    "error",
    "isDefault",
    "parents",
    "metadata",
    "inContext",
)
KNOWN = frozenset(FIELDS)
JOBS: list[dict[str, Any]] = [
    {
        "name": f"jobs/{number}",
        "displayName": f"job_{number}",
        "state": "JOB_STATE_FAILED" if number % 2 else "JOB_STATE_SUCCEEDED",
        "createTime": f"2026-11-21T09:00:0{number}.250000Z",
        "labels": {"team": "vision", "size": str(number)} if number < 3 else {},
        "parents": [f"jobs/{number - 1}", f"jobs/{number - 2}"],
        "metadata": {
            "loss": number / 2,
            "steps": number,
            "note": str(number),
            "best": number == 2,
            "a:b.c": "x",
        },
        "inContext": [f"contexts/{number % 2}"],
        **({"isDefault": True} if number == 4 else {}),
    }
    for number in range(6)
]


def found(expression: str) -> str:
    """The numbers of the jobs that match, in one word."""
    matches = predicate(expression, KNOWN)
    return "".join(job["name"][-1] for job in JOBS if matches(job))


@pytest.mark.parametrize(
    ("expression", "numbers"),
    [
        ("", "012345"),
        ('display_name="job_1"', "1"),
        ("displayName=job_1", "1"),
        ("display_name!='job_1'", "02345"),
        ('display_name:"job_*" AND state="JOB_STATE_FAILED"', "135"),
        ('state!="JOB_STATE_FAILED" OR display_name="job_1"', "0124"),
        ('NOT display_name="job_1"', "02345"),
        ('create_time>"2026-11-21T09:00:03Z"', "345"),
        ('create_time<="2026-11-21T10:00:01.25+01:00"', "01"),
        ("labels.team=vision", "012"),
        ("labels.team:*", "012"),
        ('labels."team"=vision', "012"),
        ("labels:team", "012"),
        ("NOT labels.team=vision", "345"),
        ("labels.size>=1", "12"),
        ("is_default=true", "4"),
        ("is_default!=true", "01235"),
        ("is_default:true", "4"),
        ("metadata.loss.number_value=1.5", "3"),
        ("metadata.steps.number_value=3.0", "3"),
        ("metadata.steps.number_value:3.0", "3"),
        ("metadata.steps.number_value>=4", "45"),
        ("metadata.note.string_value='3'", "3"),
        ("metadata.note.string_value='3.0'", ""),
        ("metadata.note.string_value:*", "012345"),
        ("metadata.best.bool_value=true", "2"),
        ("metadata.best.bool_value:false AND state=JOB_STATE_FAILED", "135"),
        # A value of another kind is absent.
        ("metadata.steps.string_value='3'", ""),
        ("metadata.note.number_value=3", ""),
        ("metadata.best.number_value=1", ""),
        ("metadata.steps.bool_value=true", ""),
        ("metadata.steps.string_value!='3'", "012345"),
        ('metadata."a:b.c".string_value="x"', "012345"),
        ('in_context("contexts/1")', "135"),
        ("NOT in_context('contexts/1') AND metadata.steps.number_value<3", "02"),
        ("(in_context(contexts/1) OR display_name=job_0)", "0135"),
        ('parents:"jobs/3"', "45"),
        ("labels.absent=1", ""),
        ("labels.absent!=1", "012345"),
        # OR binds tighter than AND, as AIP-160 has it, and a blank stands for AND.
        ("state=JOB_STATE_FAILED AND display_name=job_0 OR display_name=job_1", "1"),
        ("state=JOB_STATE_FAILED (display_name=job_0 OR display_name=job_3)", "3"),
        ('display_name:"job_[0]"', ""),
        (r'display_name="job\_1"', "1"),
    ],
)
def test_a_filter_takes_what_it_says(expression: str, numbers: str) -> None:
    assert found(expression) == numbers


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("display_name", "has no comparison after it"),
        ("shoe_size=1", '"shoe_size" isn\'t a field of this resource'),
        ("contexts_a.name=x", '"contexts_a.name" isn\'t a field of this resource'),
        ("metadata.loss=1.5", '"metadata.loss" doesn\'t end with a value type; add one of .number_value, '),
        ("metadata.number_value=1.5", "doesn't end with a value type"),
        (
            "metadata.loss.number_value=low",
            '"low" isn\'t a number_value; use a filter such as metadata.loss.number_value=1.5',
        ),
        ("metadata.best.bool_value=1", '"1" isn\'t a bool_value'),
        ('in_context="contexts/1"', "in_context needs one argument in parentheses"),
        ('in_context("contexts/1"', "in_context needs one argument in parentheses"),
        ('display_name("job_1")', '"displayName" has no comparison after it'),
        ('parents:"jobs/1","jobs/2"', '"," isn\'t a field of this resource'),
        ("(state=x", 'has no closing parenthesis; add a "\\)"'),
        ("state=x)", 'has an unexpected "\\)"'),
        ("state=", "is missing a value"),
        ('="x"', "is missing a field"),
        ('state="x', "has a syntax error at character 7"),
        ("(" * 60, "nested deeper than 50"),
        ("NOT " * 4000 + "state=x", "nested deeper than 50"),
        ("state=x " * 3000, "has 24000 characters; shorten it to 20000"),
    ],
)
def test_a_filter_that_cannot_be_read_is_one_sentence(expression: str, fault: str) -> None:
    with pytest.raises(ApiError, match=fault) as error:
        predicate(expression, KNOWN)
    assert error.value.status == "INVALID_ARGUMENT"
    assert error.value.findings[0].place == "filter"


def test_pages_join_to_the_whole_list_also_while_jobs_arrive() -> None:
    jobs, token, seen = JOBS[:], "", []
    while True:
        got, token = page(jobs, KNOWN, pageSize="2", pageToken=token)
        seen += [job["name"] for job in got]
        jobs = [{"name": f"jobs/new{len(seen)}"}, *jobs]  # newest first
        if not token:
            break
    assert seen == [job["name"] for job in JOBS]


def test_order_by_several_fields() -> None:
    got, _ = page(JOBS, KNOWN, orderBy="state desc, create_time desc")
    assert [job["name"][-1] for job in got] == list("420531")


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("pageSize", "-1"),
        ("pageSize", "many"),
        ("pageToken", "???"),
        ("pageToken", "bm9uZQ=="),
        ("orderBy", "state up"),
        ("orderBy", "shoe_size"),
        ("orderBy", "state," * 11),
    ],
)
def test_a_parameter_that_cannot_be_read_is_named(parameter: str, value: str) -> None:
    with pytest.raises(ApiError) as error:
        page(JOBS, KNOWN, **{parameter: value})
    assert error.value.findings[0].place == parameter


def test_a_page_has_at_most_a_thousand() -> None:
    jobs = [{"name": str(number)} for number in range(1500)]
    assert len(page(jobs, KNOWN, pageSize="5000")[0]) == 1000
    assert len(page(jobs, KNOWN)[0]) == 100


def test_a_parameter_that_nobody_knows_does_not_matter() -> None:
    got, _ = page(JOBS, KNOWN, known="x", resources="y", readMask="name")
    assert got == JOBS


def test_a_number_may_be_too_large_for_a_float() -> None:
    assert predicate("labels.step>1.5", KNOWN)({"labels": {"step": 10**400}})


def test_many_stars_are_still_matched_to_the_end() -> None:
    job = {"displayName": "a" * 128}
    with deadline():
        assert not predicate(f'display_name="{"*a" * 60}*b"', KNOWN)(job)
        assert predicate(f'display_name="{"*a" * 60}*"', KNOWN)(job)


@pytest.mark.parametrize(
    ("pattern", "takes"),
    [("a*a", False), ("*", True), ("a*", True), ("*a", True), ("a", True), ("a**", True), ("", False)],
)
def test_the_text_before_and_behind_a_star_do_not_overlap(pattern: str, takes: bool) -> None:
    assert predicate(f'display_name="{pattern}"', KNOWN)({"displayName": "a"}) is takes


def test_a_label_may_hold_dots_beside_one_that_it_begins_with() -> None:
    matches = predicate('labels.a.b="y"', KNOWN)
    assert matches({"labels": {"a": "x", "a.b": "y"}})
    assert not matches({"labels": {"a": "y"}})

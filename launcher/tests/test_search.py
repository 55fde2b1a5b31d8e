import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from google.cloud.aiplatform_v1.types import HyperparameterTuningJob, StudySpec

from launcher.tests.running import SETTINGS, SOURCE, eventually, job, processes
from vertex_launch.cli import run
from vertex_launch.job import spec, strict_yaml, study_validation
from vertex_launch.local.jobs.search import (
    Measurement,
    Search,
    Suggestion,
    Value,
    arguments,
    below_median,
    decays_below,
)

LOSS = "metrics: [{metricId: loss, goal: MINIMIZE}]\n"
BOWL = f"""{LOSS}parameters:
- {{parameterId: x, doubleValueSpec: {{minValue: -5, maxValue: 5}}}}
- {{parameterId: "y", doubleValueSpec: {{minValue: 0.0001, maxValue: 1}}, scaleType: UNIT_LOG_SCALE}}
"""
TREE = f"""{LOSS}parameters:
- parameterId: optimizer
  categoricalValueSpec: {{values: [sgd, adam, none]}}
  conditionalParameterSpecs:
  - parentCategoricalValues: {{values: [sgd]}}
    parameterSpec:
      parameterId: momentum
      discreteValueSpec: {{values: [0.0, 0.9]}}
      conditionalParameterSpecs:
      - parentDiscreteValues: {{values: [0.9]}}
        parameterSpec: {{parameterId: nesterov, categoricalValueSpec: {{values: ["on", "off"]}}}}
  - parentCategoricalValues: {{values: [adam]}}
    parameterSpec: {{parameterId: momentum, integerValueSpec: {{minValue: 7, maxValue: 8}}}}
- parameterId: layers
  integerValueSpec: {{minValue: 1, maxValue: 2}}
  conditionalParameterSpecs:
  - parentIntValues: {{values: [2]}}
    parameterSpec: {{parameterId: width, discreteValueSpec: {{values: [16, 64.5]}}}}
"""
BRANCHES: list[dict[str, Value]] = [
    {"optimizer": "sgd", "momentum": 0.0},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": "on"},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": "off"},
    {"optimizer": "adam", "momentum": 7},
    {"optimizer": "adam", "momentum": 8},
    {"optimizer": "none"},
]
LAYERS: list[dict[str, Value]] = [{"layers": 1}, {"layers": 2, "width": 16.0}, {"layers": 2, "width": 64.5}]


def study(text: str, **changes: Any) -> StudySpec:
    read = spec.read(strict_yaml.from_yaml(text), StudySpec)
    for field, value in changes.items():
        setattr(read, field, value)
    return read


def tuning(text: str) -> HyperparameterTuningJob:
    """A job with this study, and nothing else wrong with it."""
    return HyperparameterTuningJob(max_trial_count=4, parallel_trial_count=2, study_spec=study(text))


def bowl(parameters: Mapping[str, Value]) -> float:
    """0 at x = 1, y = 0.01."""
    return (float(parameters["x"]) - 1) ** 2 + (math.log10(float(parameters["y"])) + 2) ** 2


def search(spec: StudySpec, seed: int, loss: Callable[[Mapping[str, Value]], float], count: int = 60) -> list[float]:
    """The losses of so many trials, two of them at a time."""
    searching, losses = Search(spec, seed), []
    for _ in range(count // 2):
        pair = [asked for asked in (searching.ask(), searching.ask()) if asked]
        for suggestion in pair:
            losses.append(loss(suggestion.parameters))
            searching.tell(suggestion, {"loss": losses[-1]})
    return losses


def drawn(spec: StudySpec, count: int) -> list[Mapping[str, Value]]:
    searching = Search(spec)
    return [asked.parameters for asked in (searching.ask() for _ in range(count)) if asked]


def reported(*values: float, id: str = "loss", every: int = 10) -> list[Measurement]:
    """One measurement each ten steps and each second."""
    return [Measurement((i + 1) * every, 1000.0 + i, {id: value}) for i, value in enumerate(values)]


def test_sixty_trials_find_the_bottom_of_a_bowl_and_random_ones_do_not() -> None:
    tpe = [min(search(study(BOWL), seed, bowl)) for seed in range(5)]
    random_search = study(BOWL, algorithm=StudySpec.Algorithm.RANDOM_SEARCH)
    guessed = [min(search(random_search, seed, bowl)) for seed in range(5)]
    assert statistics.median(tpe) < 0.05
    assert statistics.fmean(tpe) < statistics.fmean(guessed)


def test_a_maximum_is_found_too_and_is_what_an_unspecified_goal_means() -> None:
    text = BOWL.replace(", goal: MINIMIZE", "")
    searching = search(study(text), 0, lambda parameters: -bowl(parameters))
    assert max(searching) > -0.1


def test_the_same_seed_searches_alike() -> None:
    assert search(study(BOWL), 3, bowl, 20) == search(study(BOWL), 3, bowl, 20)
    assert search(study(BOWL), 3, bowl, 20) != search(study(BOWL), 4, bowl, 20)


def test_trials_at_the_same_time_try_different_things() -> None:
    searching = Search(study(BOWL))
    for _ in range(20):
        asked = searching.ask()
        assert asked
        searching.tell(asked, {"loss": bowl(asked.parameters)})
    together = [asked.parameters["x"] for asked in (searching.ask() for _ in range(8)) if asked]
    assert len(set(together)) == 8


def test_a_failed_trial_teaches_nothing_and_stops_nothing() -> None:
    searching = Search(study(BOWL))
    for _ in range(20):
        asked = searching.ask()
        assert asked
        searching.tell(asked, None)
    assert searching.ask()


def test_trials_are_numbered_from_one() -> None:
    searching = Search(study(BOWL))
    assert [asked.id for asked in (searching.ask() for _ in range(3)) if asked] == ["1", "2", "3"]


def test_a_grid_has_every_combination_once_and_then_ends() -> None:
    gridded = drawn(study(TREE, algorithm=StudySpec.Algorithm.GRID_SEARCH), 100)
    assert gridded == [branch | layers for branch in BRANCHES for layers in LAYERS]


def test_a_flag_that_trials_repeat_is_known_at_any_depth_of_the_study() -> None:
    assert run.tried(["--nesterov=on", "--width", "8", "--steps", "5"], study(TREE)) == ["--nesterov", "--width"]


@pytest.mark.parametrize("algorithm", ["ALGORITHM_UNSPECIFIED", "RANDOM_SEARCH"])
def test_conditional_parameters_are_there_with_their_parents_values_only(algorithm: str) -> None:
    searching = Search(study(TREE, algorithm=getattr(StudySpec.Algorithm, algorithm)))
    seen = []
    for number in range(150):
        asked = searching.ask()
        assert asked
        seen.append(asked.parameters)
        searching.tell(asked, {"loss": float(number % 7)})
    possible = [branch | layers for branch in BRANCHES for layers in LAYERS]
    assert [parameters for parameters in seen if parameters not in possible] == []
    assert {parameters["optimizer"] for parameters in seen} == {"sgd", "adam", "none"}


def test_whole_numbers_are_whole_and_discrete_ones_are_as_written() -> None:
    for parameters in drawn(study(TREE, algorithm=StudySpec.Algorithm.RANDOM_SEARCH), 30):
        assert type(parameters["layers"]) is int
        assert parameters.get("width", 16.0) in (16.0, 64.5)


@pytest.mark.parametrize("kind", ["doubleValueSpec", "integerValueSpec"])
def test_a_reverse_log_scale_favours_the_top_as_a_log_scale_does_the_bottom(kind: str) -> None:
    def values(scale: str) -> list[float]:
        parameter = f"{{parameterId: x, {kind}: {{minValue: 1, maxValue: 1000}}, scaleType: {scale}}}"
        spec = study(f"{LOSS}parameters: [{parameter}]", algorithm=StudySpec.Algorithm.RANDOM_SEARCH)
        return [float(parameters["x"]) for parameters in drawn(spec, 200)]

    bottom, top, even = (values(f"UNIT_{scale}_SCALE") for scale in ("LOG", "REVERSE_LOG", "LINEAR"))
    assert all(1 <= value <= 1000 for value in bottom + top + even)
    assert statistics.median(bottom) < 100 < 300 < statistics.median(even) < 700 < 900 < statistics.median(top)


def test_two_metrics_are_two_goals() -> None:
    text = "metrics: [{metricId: accuracy}, {metricId: loss, goal: MINIMIZE}]\n"
    searching = Search(study(text + BOWL.removeprefix(LOSS)))
    for _ in range(15):
        asked = searching.ask()
        assert asked
        searching.tell(asked, {"accuracy": 1.0, "loss": bowl(asked.parameters)})
    assert searching.final([Measurement(1, 0.0, {"loss": 1.0})]) is None


REVERSED = f"""{LOSS}parameters:
- {{parameterId: x, doubleValueSpec: {{minValue: 0.1, maxValue: 0.9}}, scaleType: UNIT_REVERSE_LOG_SCALE}}
- {{parameterId: "n", integerValueSpec: {{minValue: 1, maxValue: 100}}, scaleType: UNIT_REVERSE_LOG_SCALE}}
"""


def continued(
    spec: StudySpec, earlier: list[Mapping[str, Value]], loss: Callable[[Mapping[str, Value]], float]
) -> Search:
    """A search that goes on after these trials."""
    searching = Search(spec, seed=len(earlier))
    for number, parameters in enumerate(earlier, start=1):
        repeated = searching.repeat(str(number), json.loads(json.dumps(parameters)), 1000.0)
        searching.tell(repeated, {"loss": loss(parameters)})
    return searching


@pytest.mark.parametrize("text", [BOWL, TREE, REVERSED])
@pytest.mark.parametrize("algorithm", ["ALGORITHM_UNSPECIFIED", "RANDOM_SEARCH"])
def test_a_search_that_goes_on_tries_other_things_than_before(text: str, algorithm: str) -> None:
    spec = study(text, algorithm=getattr(StudySpec.Algorithm, algorithm))
    earlier = drawn(spec, 30)
    searching = continued(spec, earlier, lambda parameters: 1.0)
    asked = [one for one in (searching.ask() for _ in range(30)) if one]
    assert asked[0].id == "31"
    assert [one.parameters for one in asked] != earlier
    if text != TREE:  # which has 18 points in all
        assert not [one for one in asked if one.parameters in earlier]


@pytest.mark.parametrize("text", [BOWL, TREE, REVERSED])
def test_a_trial_is_repeated_with_what_was_drawn_for_it(text: str) -> None:
    searching, goes_on = Search(study(text)), Search(study(text), seed=20)
    for _ in range(20):
        asked = searching.ask()
        assert asked
        repeated = goes_on.repeat(asked.id, asked.parameters, asked.began)
        assert repeated.parameters == asked.parameters
        assert repeated.trial.params == pytest.approx(asked.trial.params)


def test_a_search_that_goes_on_has_learnt_from_the_trials_before() -> None:
    earlier = drawn(study(BOWL, algorithm=StudySpec.Algorithm.RANDOM_SEARCH), 40)
    searching = continued(study(BOWL), earlier, bowl)
    asked = [one for one in (searching.ask() for _ in range(15)) if one]
    assert statistics.median(bowl(one.parameters) for one in asked) < statistics.median(map(bowl, earlier)) / 2


def test_a_grid_that_goes_on_has_the_points_that_are_left() -> None:
    spec = study(TREE, algorithm=StudySpec.Algorithm.GRID_SEARCH)
    points = drawn(spec, 100)
    searching = continued(spec, points[:7], lambda parameters: 1.0)
    assert [asked.parameters for asked in iter(searching.ask, None)] == points[7:]


def test_the_service_does_not_load_optuna_before_a_study_begins() -> None:
    code = "import sys, vertex_launch.local.jobs.search; print({'optuna', 'numpy'} & sys.modules.keys())"
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert shown.stdout == "set()\n"


LAST, BEST = "LAST_MEASUREMENT", "BEST_MEASUREMENT"


@pytest.mark.parametrize(
    ("selection", "values", "counts"),
    [
        ("MEASUREMENT_SELECTION_TYPE_UNSPECIFIED", [3.0, 1.0, 2.0], 2.0),
        (LAST, [3.0, 1.0, 2.0], 2.0),
        (BEST, [3.0, 1.0, 2.0], 1.0),
        (LAST, [3.0, math.nan], None),  # it diverged
        (BEST, [3.0, math.nan], 3.0),
        (BEST, [math.nan, math.inf, -math.inf], None),
        (LAST, [], None),
        (BEST, [], None),
    ],
)
def test_the_measurement_that_counts_is_the_one_that_the_study_selects(
    selection: str, values: list[float], counts: float | None
) -> None:
    searching = Search(study(BOWL, measurement_selection_type=getattr(StudySpec.MeasurementSelectionType, selection)))
    final = searching.final(reported(*values))
    assert (final.metrics["loss"] if final else None) == counts


def test_the_best_of_what_is_maximized_is_the_largest() -> None:
    text = BOWL.replace("MINIMIZE", "MAXIMIZE")
    searching = Search(study(text, measurement_selection_type=StudySpec.MeasurementSelectionType.BEST_MEASUREMENT))
    final = searching.final(reported(3.0, 1.0, 2.0))
    assert final == reported(3.0)[0]


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        (reported(math.nan, every=1), "the trial reported nan at step 1 for loss"),
        (reported(0.5, -math.inf), "the trial reported -inf at step 20 for loss"),
        (reported(0.5, id="accuracy"), ""),
        ([], ""),
    ],
)
def test_why_a_trial_has_no_result_is_said(reports: list[Measurement], words: str) -> None:
    searching = Search(study(BOWL))
    assert searching.final(reports) is None
    assert searching.why_none(reports) == words


MEDIAN = BOWL + "medianAutomatedStoppingSpec: {useElapsedDuration: false}\n"
CONVEX = BOWL + "convexAutomatedStoppingSpec: {minStepCount: 20, minMeasurementCount: 2}\n"
DECAY = BOWL + "decayCurveStoppingSpec: {}\n"


def after(text: str, *ended: list[float]) -> Search:
    """A search in which trials have ended with these losses."""
    searching = Search(study(text))
    for losses in ended:
        asked = searching.ask()
        assert asked
        searching.tell(asked, {"loss": losses[-1]}, reported(*losses))
    return searching


def test_a_trial_is_stopped_when_its_best_is_worse_than_the_median_average_up_to_there() -> None:
    searching = after(MEDIAN, [4.0, 2.0, 0.0], [5.0, 3.0, 1.0], [9.0, 9.0, 9.0])  # averages at step 20: 3, 4, 9
    running = Suggestion("9", {}, 1000.0)
    assert searching.should_stop(running, reported(6.0, 4.5))
    assert not searching.should_stop(running, reported(6.0, 4.0))  # as good as the median
    assert not searching.should_stop(running, reported(3.0, 9.0))  # its best is better
    assert not searching.should_stop(running, reported(5.0))  # step 10: the median is 5
    assert not searching.should_stop(running, [])


def test_what_is_maximized_is_stopped_from_below() -> None:
    assert below_median([(10, 0.5)], [[(10, 0.6)], [(10, 0.7)]])
    assert not below_median([(10, 0.65)], [[(10, 0.6)], [(10, 0.7)]])
    assert not below_median([(5, 0.1)], [[(10, 0.6)]])  # nobody has been there


def test_seconds_may_stand_for_steps() -> None:
    searching = Search(study(MEDIAN.replace("false", "true")))
    ended, running = searching.ask(), searching.ask()
    assert ended
    assert running
    searching.tell(ended, {"loss": 1.0}, [Measurement(1, ended.began + 60, {"loss": 1.0})])
    assert searching.should_stop(running, [Measurement(1, running.began + 90, {"loss": 9.0})])
    assert not searching.should_stop(running, [Measurement(500, running.began + 30, {"loss": 9.0})])


def test_nobody_is_stopped_before_a_trial_has_ended_or_without_a_rule() -> None:
    running = Suggestion("1", {}, 1000.0)
    assert not Search(study(MEDIAN)).should_stop(running, reported(9.0))
    assert not after(BOWL, [1.0]).should_stop(running, reported(9.0))


def test_a_curve_that_flattens_above_the_best_is_stopped() -> None:
    searching = after(DECAY, [1 / step for step in range(1, 21)])
    running = Suggestion("9", {}, 1000.0)
    assert searching.should_stop(running, reported(*(2 + 1 / step for step in range(1, 9))))
    assert not searching.should_stop(running, reported(*(1 / step for step in range(1, 9))))  # the same curve
    assert not searching.should_stop(running, reported(9.0, 5.0, 3.6))  # too few to tell
    assert not searching.should_stop(running, reported(9.0, 2.0, 8.0, 1.0, 9.0, 2.0))  # nothing can be told
    assert not searching.should_stop(running, reported(*[2.0] * 20))  # it is at its end anyway


def test_a_curve_that_still_rises_towards_the_best_goes_on() -> None:
    best = [(float(step), 0.9) for step in range(10, 110, 10)]
    rising = [(float(step), 1 - 2 / step) for step in range(10, 60, 10)]
    assert not decays_below(rising, [best])
    assert decays_below([(x, score / 2) for x, score in rising], [best])


def test_a_curve_whose_last_slope_leads_to_less_than_the_best_is_stopped() -> None:
    three = [[1 / step for step in range(1, 11)]] * 3  # losses at the steps 10 to 100; the best is 0.1
    searching, running = after(CONVEX, *three), Suggestion("9", {}, 1000.0)
    falls = [9.0, 8.0, 7.0, 6.0]  # to 1 at step 90, and 0 at step 100
    assert searching.should_stop(running, reported(*[9.0, 8.5, 8.0, 7.5]))
    assert not searching.should_stop(running, reported(*falls))
    assert not searching.should_stop(running, reported(9.0, 8.9))  # step 20 is not past the least
    assert not searching.should_stop(running, reported(*[9.0] * 4))  # a flat curve predicts nothing
    assert not searching.should_stop(running, reported(*(9.0 - step / 9 for step in range(10))))  # at its end
    assert not after(CONVEX, *three[:2]).should_stop(running, reported(9.0, 8.5, 8.0, 7.5))  # too few have ended
    further = after(CONVEX.replace("minStep", "maxStepCount: 200, minStep"), *three)
    assert not further.should_stop(running, reported(9.0, 8.5, 8.0, 7.5))  # there is more time


def test_values_are_flags_that_any_trainer_reads() -> None:
    values: dict[str, Value] = {"learning_rate": 1e-05, "rate": 0.1, "width": 64.0, "layers": 3, "name": "a b=c"}
    values |= {"net": "resnet-1.0", "version": "1.0"}  # which are no numbers
    assert arguments(values) == [
        "--learning_rate=1e-05",
        "--rate=0.1",
        "--width=64",
        "--layers=3",
        "--name=a b=c",
        "--net=resnet-1.0",
        "--version=1.0",
    ]
    assert arguments({}) == []


def parameter(text: str) -> str:
    return f"{LOSS}parameters: [{{{text}}}]"


DOUBLE = "parameterId: x, doubleValueSpec: {minValue: 1, maxValue: 2}"
INTEGER = 'parameterId: "n", integerValueSpec: {minValue: 1, maxValue: 9}'
CHILD = 'parameterSpec: {parameterId: "y", integerValueSpec: {minValue: 1, maxValue: 2}}'

# A study, and all that is said about it: the place below studySpec and words of the sentence.
FAULTS = [
    (LOSS, "parameters", "a parameter to tune"),
    (f"parameters: [{{{DOUBLE}}}]", "metrics", "doesn't have a metric"),
    (f"metrics: [{{}}]\nparameters: [{{{DOUBLE}}}]", "metrics[0].metricId", "is missing"),
    (f"metrics: [{{metricId: my loss}}]\nparameters: [{{{DOUBLE}}}]", "metrics[0].metricId", "write my_loss"),
    (
        f"metrics: [{{metricId: loss, safetyConfig: {{safetyThreshold: 0.5}}}}]\nparameters: [{{{DOUBLE}}}]",
        "metrics[0].safetyConfig",
        "remove this field",
    ),
    (parameter("doubleValueSpec: {minValue: 1, maxValue: 2}"), "parameters[0].parameterId", "is missing"),
    (parameter(DOUBLE.replace(" x", " a b")), "parameters[0].parameterId", "white space"),
    (parameter("parameterId: x"), "parameters[0]", "add one of doubleValueSpec, integerValueSpec"),
    (
        parameter("parameterId: x, doubleValueSpec: {minValue: 1, maxValue: 0.5}"),
        "parameters[0].doubleValueSpec",
        "minValue 1 is above maxValue 0.5; swap the two",
    ),
    (
        parameter("parameterId: x, integerValueSpec: {minValue: 3, maxValue: 2}"),
        "parameters[0].integerValueSpec",
        "swap the two",
    ),
    (
        parameter("parameterId: x, doubleValueSpec: {maxValue: 1}, scaleType: UNIT_LOG_SCALE"),
        "parameters[0].doubleValueSpec",
        "minValue 0 has no logarithm",
    ),
    (
        parameter("parameterId: x, discreteValueSpec: {values: [0, 1]}, scaleType: UNIT_REVERSE_LOG_SCALE"),
        "parameters[0].discreteValueSpec.values",
        "0 has no logarithm",
    ),
    (
        parameter('parameterId: x, integerValueSpec: {minValue: 0, maxValue: "9007199254740993"}'),
        "parameters[0].integerValueSpec",
        "lose precision",
    ),
    (
        parameter("parameterId: x, categoricalValueSpec: {}"),
        "parameters[0].categoricalValueSpec.values",
        "the list is empty",
    ),
    (
        parameter("parameterId: x, categoricalValueSpec: {values: [a, b, a]}"),
        "parameters[0].categoricalValueSpec.values",
        "twice",
    ),
    (
        parameter("parameterId: x, discreteValueSpec: {values: [2, 1]}"),
        "parameters[0].discreteValueSpec.values",
        "sort the values",
    ),
    (
        parameter(f"parameterId: x, discreteValueSpec: {{values: {[*range(1001)]}}}"),
        "parameters[0].discreteValueSpec.values",
        "Vertex AI accepts at most 1000 values, not 1001",
    ),
    (
        parameter(DOUBLE) + "\nalgorithm: GRID_SEARCH",
        "parameters[0].doubleValueSpec",
        "GRID_SEARCH can't try all values of a range; list values in a discreteValueSpec",
    ),
    (
        f"{LOSS}parameters: [{{{DOUBLE}}}, {{{DOUBLE}}}]",
        "parameters[1].parameterId",
        'studySpec.parameters[0] is also called "x"',
    ),
    (
        parameter(f"{DOUBLE}, conditionalParameterSpecs: [{{{CHILD}, parentDiscreteValues: {{values: [1]}}}}]"),
        "parameters[0].conditionalParameterSpecs[0]",
        "doubleValueSpec; use a discreteValueSpec in the parent",
    ),
    (
        parameter(f"{INTEGER}, conditionalParameterSpecs: [{{{CHILD}, parentDiscreteValues: {{values: [1]}}}}]"),
        "parameters[0].conditionalParameterSpecs[0]",
        "the values of n are missing; add parentIntValues",
    ),
    (
        parameter(f"{INTEGER}, conditionalParameterSpecs: [{{{CHILD}}}]"),
        "parameters[0].conditionalParameterSpecs[0]",
        "add parentIntValues",
    ),
    (
        parameter(f"{INTEGER}, conditionalParameterSpecs: [{{{CHILD}, parentIntValues: {{values: [1, 10]}}}}]"),
        "parameters[0].conditionalParameterSpecs[0].parentIntValues.values",
        '"10" isn\'t a value of n',
    ),
    (
        parameter(
            f"{INTEGER}, conditionalParameterSpecs: ["
            f"{{{CHILD}, parentIntValues: {{values: [1, 2]}}}}, {{{CHILD}, parentIntValues: {{values: [2, 3]}}}}]"
        ),
        "parameters[0].conditionalParameterSpecs[1].parameterSpec.parameterId",
        'studySpec.parameters[0].conditionalParameterSpecs[0].parameterSpec is also called "y"',
    ),
    (
        parameter(
            f"{INTEGER}, conditionalParameterSpecs: ["
            '{parentIntValues: {values: [1]}, parameterSpec: {parameterId: "y", categoricalValueSpec: {}}}]'
        ),
        "parameters[0].conditionalParameterSpecs[0].parameterSpec.categoricalValueSpec.values",
        "the list is empty",
    ),
    (
        parameter(DOUBLE) + "\nconvexAutomatedStoppingSpec: {learningRateParameterName: x}",
        "convexAutomatedStoppingSpec.learningRateParameterName",
        "remove this field",
    ),
    (
        parameter(DOUBLE) + "\nconvexAutomatedStoppingSpec: {updateAllStoppedTrials: true}",
        "convexAutomatedStoppingSpec.updateAllStoppedTrials",
        "stopped trials always keep their measurements",
    ),
    (parameter(DOUBLE) + "\nstudyStoppingConfig: {maxNumTrials: 3}", "studyStoppingConfig", "use maxTrialCount"),
    (
        f"metrics: [{{metricId: a}}, {{metricId: b}}]\nparameters: [{{{DOUBLE}}}]\nmedianAutomatedStoppingSpec: {{}}",
        "medianAutomatedStoppingSpec",
        "keep one metric",
    ),
]


@pytest.mark.parametrize(("text", "place", "words"), FAULTS)
def test_a_fault_of_a_study_is_one_sentence_with_its_place_and_a_cure(text: str, place: str, words: str) -> None:
    (finding,) = study_validation.findings(tuning(text))
    assert finding.place == f"studySpec.{place}"
    assert words in finding.sentence
    assert finding.cure


@pytest.mark.parametrize("text", [BOWL, TREE, MEDIAN, DECAY, CONVEX, TREE + "algorithm: GRID_SEARCH\n"])
def test_a_sound_study_has_no_fault(text: str) -> None:
    assert list(study_validation.findings(tuning(text))) == []


def test_a_metric_named_twice_is_one_too_many() -> None:
    text = f"metrics: [{{metricId: a}}, {{metricId: a}}]\nparameters: [{{{DOUBLE}}}]"
    assert [finding.place for finding in study_validation.findings(tuning(text))] == [
        "studySpec.metrics[0].metricId",
        "studySpec.metrics[1].metricId",
    ]


@pytest.mark.parametrize(
    ("counts", "places"),
    [
        ({}, ["maxTrialCount", "parallelTrialCount"]),
        ({"max_trial_count": 3, "parallel_trial_count": 4}, []),
        ({"max_trial_count": 3, "parallel_trial_count": 0}, ["parallelTrialCount"]),
        ({"max_trial_count": -3, "parallel_trial_count": 1}, ["maxTrialCount"]),
        ({"max_trial_count": 3, "parallel_trial_count": 3, "max_failed_trial_count": -1}, ["maxFailedTrialCount"]),
        ({"max_trial_count": 3, "parallel_trial_count": 3, "max_failed_trial_count": 9}, []),
    ],
)
def test_the_counts_of_trials_must_fit_each_other(counts: dict[str, int], places: list[str]) -> None:
    job = HyperparameterTuningJob(study_spec=study(BOWL), **counts)
    assert [finding.place for finding in study_validation.findings(job)] == places


def test_a_tuning_job_that_is_hardly_there_is_refused_and_nothing_else() -> None:
    assert len(list(study_validation.findings(HyperparameterTuningJob()))) == 4
    assert list(study_validation.findings(tuning("metrics: [{}]\nparameters: [{conditionalParameterSpecs: [{}, {}]}]")))


MARKS = ".vertex/marks"  # in the launcher's folder, which trials share
RATE = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Runs a search in a folder of its own: each trial is this Python, and `counts` are its numbers of trials."""

    def start(
        trial: str, *flags: str, study: Mapping[str, Any] = MappingProxyType({}), **counts: int
    ) -> "subprocess.Popen[str]":
        metrics = [{"metricId": "loss", "goal": "MINIMIZE"}]
        trial_job = job(command=["python", "-c", trial], env=[{"name": "MARK", "value": str(tmp_path / MARKS)}])
        document = {
            **counts,
            "studySpec": {"metrics": metrics, "parameters": [RATE], **study},
            "trialJobSpec": trial_job | {"scheduling": {"disableRetries": True}},
        }
        (tmp_path / "vertex.toml").write_text(SETTINGS)
        (tmp_path / "tuning.yaml").write_text(json.dumps(document))
        command = [sys.executable, "-m", "vertex_launch", "run", "tuning.yaml", *flags]
        environ = os.environ | {"PYTHONPATH": str(SOURCE)}
        return subprocess.Popen(
            command, cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    return start


def test_an_interrupted_search_stops_its_trials_and_says_how_it_goes_on(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    forever = "import time; print('started', flush=True); time.sleep(1000)"
    search = start(forever, "--max-replicas", "1", maxTrialCount=4, parallelTrialCount=2)
    logs = tmp_path / ".vertex/jobs"
    try:
        started = eventually(lambda: sum("started" in path.read_text() for path in logs.glob("*/*-0.log")) == 2, 240)
        search.send_signal(signal.SIGINT)
        _, said = search.communicate(timeout=240)
    finally:
        search.kill()
    assert started
    stopped, advice = said.splitlines()[-2:]  # after the warnings of `check`
    assert "Traceback" not in said
    assert (search.returncode, stopped) == (130, "interrupted; every trial was stopped")
    begin, _, same = advice.partition(": ")
    python, *rest = shlex.split(same)
    assert begin == "to continue after the completed trials, run"
    assert shutil.which(python) == sys.executable  # so that it can be pasted
    assert rest == ["-m", "vertex_launch", "run", "tuning.yaml", "--max-replicas", "1"]
    assert eventually(lambda: processes(f"MARK={tmp_path}") == [])


REPORTS = """import sys, hypertune
print(value := {})
hypertune.HyperTune().report_hyperparameter_tuning_metric('loss', value, 1)"""


def test_a_trial_that_reports_no_number_is_said_to(start: Callable[..., "subprocess.Popen[str]"]) -> None:
    odd_ones_diverge = "1.0 if int(os.environ['CLOUD_ML_TRIAL_ID']) % 2 else float('nan')"
    search = start(f"import os\n{REPORTS.format(odd_ones_diverge)}", maxTrialCount=2, parallelTrialCount=1)
    said, _ = search.communicate(timeout=240)
    assert search.returncode == 0
    assert said.splitlines()[-1].rstrip().endswith("failed: the trial reported nan at step 1 for loss")
    assert "tuning-trial-2: has no result: the trial reported nan at step 1 for loss" in said  # when it ends, too


@pytest.mark.parametrize(("value", "alike"), [("0.25", True), ("float(sys.argv[1].partition('=')[2])", False)])
def test_a_search_whose_trials_all_measure_the_same_says_that_flags_may_not_arrive(
    start: Callable[..., "subprocess.Popen[str]"], value: str, alike: bool
) -> None:
    search = start(REPORTS.format(value), maxTrialCount=2, parallelTrialCount=2)
    said, _ = search.communicate(timeout=240)
    assert search.returncode == 0
    words = "all 2 trials reported exactly the same loss, 0.25. The trial flags might not reach the program. If "
    assert said.splitlines()[-1].startswith(words) == alike


# Reports at its first start alone, as a trainer that goes on behind its last report; the third trial waits for `go`.
ONCE = """import os, pathlib, sys, time, hypertune
trial, mark = os.environ["CLOUD_ML_TRIAL_ID"], pathlib.Path(os.environ["MARK"])
first = trial not in (mark / "started").read_text()
(mark / "started").open("a").write(trial)
if first: hypertune.HyperTune().report_hyperparameter_tuning_metric("loss", float(sys.argv[1].partition("=")[2]), 1)
while trial == "3" and not (mark / "go").exists(): time.sleep(0.05)
"""
GRID = {
    "algorithm": "GRID_SEARCH",
    "parameters": [{"parameterId": "rate", "discreteValueSpec": {"values": [0.25, 0.5, 0.75, 1.0]}}],
}


def finish(search: "subprocess.Popen[str]") -> tuple[str, str]:
    """What a search printed and complained until its end."""
    try:
        return search.communicate(timeout=240)
    finally:
        search.kill()


def interrupt(search: "subprocess.Popen[str]", ready: Callable[[], bool]) -> None:
    """End a search by Ctrl-C as soon as it is that far."""
    try:
        assert eventually(ready, 240)
        search.send_signal(signal.SIGINT)
        search.communicate(timeout=240)
    finally:
        search.kill()
    assert search.returncode == 130


def resources(folder: Path, collection: str) -> list[dict[str, Any]]:
    """The resources of a collection, as the service keeps them."""
    return [json.loads(path.read_text()) for path in folder.glob(f".vertex/projects/*/locations/*/{collection}/*.json")]


def rows(said: str) -> list[list[str]]:
    """The table of a search."""
    return [line.split() for line in said[said.index(" trial ") :].splitlines()[1:]]


@pytest.mark.parametrize("study", [{}, pytest.param(GRID, marks=pytest.mark.proof)], ids=["default", "grid"])
def test_a_search_that_is_run_again_goes_on_after_its_finished_trials(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, study: Mapping[str, Any]
) -> None:
    (tmp_path / MARKS).mkdir(parents=True)
    started = tmp_path / MARKS / "started"
    started.touch()
    counts = {"maxTrialCount": 4, "parallelTrialCount": 1}
    metrics = ".vertex/jobs/*/workerpool0-0.metrics"
    search = start(ONCE, study=study, **counts)
    interrupt(search, lambda: started.read_text() == "123" and len([*tmp_path.glob(metrics)]) == 3)
    (stopped,) = resources(tmp_path, "hyperparameterTuningJobs")
    assert stopped["state"] == "JOB_STATE_CANCELLED"
    (tmp_path / MARKS / "go").touch()
    said, _ = finish(start(ONCE, study=study, **counts))
    assert started.read_text() == "12334"
    (again,) = resources(tmp_path, "hyperparameterTuningJobs")  # the same, whose seconds count once
    assert (again["name"], again["state"]) == (stopped["name"], "JOB_STATE_SUCCEEDED")
    assert {trial["customJob"] for trial in again["trials"]} == {
        job["name"] for job in resources(tmp_path, "customJobs")
    }
    assert "trials completed by an earlier run: 2; to start over, use --fresh" in said
    assert [(row[0], row[1] == row[2], row[3].rstrip(",")) for row in rows(said)] == [
        (id, True, "succeeded") for id in "1234"
    ]
    assert len({row[1] for row in rows(said)}) == 4
    assert [row for row in rows(said) if "best" in row] == [min(rows(said), key=lambda row: float(row[2]))]

    other = [{**RATE, "doubleValueSpec": {"minValue": 0.1, "maxValue": 2}}]
    _, refused = finish(start(ONCE, study={"parameters": other}, **counts))
    assert "tuning.yaml: these fields of the study have changed: " in refused
    assert "parameters; undo the change, or add --fresh to delete the earlier trials" in refused
    finish(start(ONCE, "--fresh", study={"parameters": other}, **counts))
    assert started.read_text() == "123341234"


def test_a_search_does_not_begin_in_the_output_folder_of_something_else(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    (tmp_path / ".vertex/gcs/b/run/model").mkdir(parents=True)
    _, refused = finish(start("", maxTrialCount=2, parallelTrialCount=1))
    told = ".vertex/gcs/b/run contains output that isn't from tuning job tuning"
    assert refused.splitlines()[-1] == f"tuning.yaml: {told}; to delete that output, add --fresh"


def test_a_trial_is_stopped_early_for_what_trials_of_the_run_before_reported(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    (tmp_path / MARKS).mkdir(parents=True)
    started = tmp_path / MARKS / "started"
    started.touch()
    second_is_worse = """import os, pathlib, time, hypertune
trial, started = os.environ["CLOUD_ML_TRIAL_ID"], pathlib.Path(os.environ["MARK"]) / "started"
started.open("a").write(trial)
for step in range(0 if started.read_text() == "12" else 3):
    hypertune.HyperTune().report_hyperparameter_tuning_metric("loss", int(trial), step)
time.sleep(1000 if trial == "2" else 0)
"""
    median: dict[str, Any] = {"medianAutomatedStoppingSpec": {}}
    counts = {"maxTrialCount": 2, "parallelTrialCount": 1}
    interrupt(start(second_is_worse, study=median, **counts), lambda: started.read_text() == "12")
    said, _ = finish(start(second_is_worse, study=median, **counts))
    assert started.read_text() == "122"
    assert [" ".join(row[3:]) for row in rows(said)] == [
        "succeeded, the best",
        "stopped early: worse than the median of the other trials",
    ]


def test_a_search_ends_after_as_many_failed_trials_as_it_may_have(
    start: Callable[..., "subprocess.Popen[str]"],
) -> None:
    search = start("raise SystemExit('no data')", maxTrialCount=9, parallelTrialCount=1, maxFailedTrialCount=2)
    said, _ = search.communicate(timeout=240)
    assert search.returncode == 1
    assert "Tuning job failed: 2 of 2 trials failed. First error: " in said

"""Suggests parameters for the trials of a study, selects each trial's final measurement, and stops trials early.

Vertex AI uses Google Vizier. The local Vertex uses optuna, which is imported when the first study begins.
study_validation.py has already checked the study.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch.errors import Findings, not_installed
from vertex_launch.job.study_validation import LOGARITHMIC, is_active, kind_of, shown, values_of

ParameterSpec = StudySpec.ParameterSpec
Scale = ParameterSpec.ScaleType
Value: TypeAlias = float | int | str
Curve: TypeAlias = list[tuple[float, float]]  # (steps or seconds, score); larger scores are better

GRID = StudySpec.Algorithm.GRID_SEARCH
BEST = StudySpec.MeasurementSelectionType.BEST_MEASUREMENT
DECAY_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
DECAY_LEAST = 4  # the minimum number of measurements; the curve has three coefficients
DECAY_MARGIN = 2.0  # standard deviations
# The minimum number of measurements. The number of ended trials must be larger than this number.
# Source: StudySpec.ConvexAutomatedStoppingSpec.
CONVEX_LEAST = 5


@dataclass(frozen=True)
class Suggestion:
    """The parameters of one trial."""

    id: str
    parameters: Mapping[str, Value]
    began: float  # seconds since 1970
    trial: Any = None  # optuna's trial; None for a grid


@dataclass(frozen=True, slots=True)
class Measurement:
    """The metrics that a trial reported at one step."""

    step: int
    time: float  # seconds since 1970
    metrics: Mapping[str, float]


class Search:
    """The study of one tuning job. This class isn't thread-safe."""

    def __init__(self, spec: StudySpec, seed: int = 0) -> None:
        self._spec = spec
        self._goals = {metric.metric_id: metric.goal for metric in spec.metrics}
        self._asked = 0
        self._ended: list[Curve] = []
        self._grid = _grid([*spec.parameters]) if spec.algorithm == GRID else None
        self._study: Any = None if spec.algorithm == GRID else _study(spec, seed)

    def ask(self) -> Suggestion | None:
        """Return the next trial, or None if all points of the grid have been tried."""
        trial = self._study.ask() if self._study else None
        parameters = next(self._grid, None) if self._grid else _suggest(partial(_draw, trial), self._spec.parameters)
        if parameters is None:
            return None
        self._asked += 1
        return Suggestion(str(self._asked), parameters, time.time(), trial)

    def repeat(self, id: str, parameters: Mapping[str, Value], began: float) -> Suggestion:
        """Return the next trial from an earlier run of this study.

        Call `repeat` for all earlier trials before calling `ask`.
        """
        trial = self._asked_again(parameters) if self._study else None
        if self._grid:
            next(self._grid)
        self._asked += 1
        return Suggestion(id, parameters, began, trial)

    def tell(
        self, suggestion: Suggestion, metrics: Mapping[str, float] | None, measurements: Sequence[Measurement] = ()
    ) -> None:
        """Report the final metrics of a trial. The metrics are None if the trial failed.

        Early stopping uses the measurements.
        """
        if self._study:
            from optuna.trial import TrialState

            values = [metrics[id] for id in self._goals] if metrics is not None else None
            self._study.tell(suggestion.trial, values, TrialState.FAIL if values is None else None)
        curve = self._curve(suggestion, measurements)
        if metrics is not None and curve:
            self._ended.append(curve)

    def final(self, measurements: Sequence[Measurement]) -> Measurement | None:
        """Return a trial's final measurement, which is its last or best one, depending on the study.

        The first metric determines the best measurement. Return None if the final measurement lacks a metric or
        contains a value that isn't finite.
        Source: google-cloud-aiplatform 2.7.0, StudySpec.MeasurementSelectionType.
        """
        whole = self._whole(measurements)
        finite = [measurement for measurement in whole if all(map(math.isfinite, measurement.metrics.values()))]
        if self._spec.measurement_selection_type == BEST:
            return max(finite, key=self._score, default=None)
        return whole[-1] if finite and whole[-1] is finite[-1] else None

    def why_none(self, measurements: Sequence[Measurement]) -> str:
        """Return a phrase about a NaN or infinite value in the last measurement that contains all metrics.

        Return "" if no measurement contains all metrics.
        """
        for last in self._whole(measurements)[-1:]:
            id, value = next((id, value) for id, value in last.metrics.items() if not math.isfinite(value))
            return f"the trial reported {value} at step {last.step} for {id}"
        return ""

    def should_stop(self, suggestion: Suggestion, measurements: Sequence[Measurement]) -> bool:
        """Return whether a running trial must stop now under the study's automated stopping rule."""
        if not (self._ended and (curve := self._curve(suggestion, measurements))):
            return False
        if "median_automated_stopping_spec" in self._spec:
            return below_median(curve, self._ended)
        if "decay_curve_stopping_spec" in self._spec:
            return decays_below(curve, self._ended)
        if "convex_automated_stopping_spec" in self._spec:
            return heads_below(curve, self._ended, self._spec.convex_automated_stopping_spec)
        return False

    def _asked_again(self, parameters: Mapping[str, Value]) -> Any:
        """Return a new optuna trial with these parameters."""
        drawn: dict[str, Value] = {}

        def repeat(name: str, parameter: ParameterSpec) -> Value:
            value = parameters[parameter.parameter_id]
            drawn[name] = _undrawn(parameter, value)
            return value

        _suggest(repeat, self._spec.parameters)
        self._study.enqueue_trial(drawn)
        trial = self._study.ask()
        _suggest(partial(_draw, trial), self._spec.parameters)
        return trial

    def _whole(self, measurements: Sequence[Measurement]) -> list[Measurement]:
        return [measurement for measurement in measurements if self._goals.keys() <= measurement.metrics.keys()]

    def _score(self, measurement: Measurement) -> float:
        id, goal = next(iter(self._goals.items()))
        value = measurement.metrics.get(id, math.nan)
        return -value if goal == StudySpec.MetricSpec.GoalType.MINIMIZE else value

    def _curve(self, suggestion: Suggestion, measurements: Sequence[Measurement]) -> Curve:
        spec = self._spec
        rule = spec.median_automated_stopping_spec or spec.decay_curve_stopping_spec
        rule = rule or spec.convex_automated_stopping_spec
        points = [
            (report.time - suggestion.began if rule.use_elapsed_duration else float(report.step), self._score(report))
            for report in measurements
        ]
        return [(x, score) for x, score in points if math.isfinite(score)]


def findings(spec: StudySpec) -> Findings:
    """Yield a finding if the study requires optuna but it isn't installed. A grid search doesn't require optuna."""
    if spec.algorithm != GRID:
        yield from not_installed("optuna", "studySpec")


def below_median(curve: Curve, ended: Sequence[Curve]) -> bool:
    """Return whether a trial's best score is below the median of the ended trials' average scores.

    Each average includes only scores up to the trial's current step.
    Source: google-cloud-aiplatform 2.7.0, StudySpec.MedianAutomatedStoppingSpec.
    """
    until = curve[-1][0]
    reached = [[score for x, score in rival if x <= until] for rival in ended]
    averages = [statistics.fmean(scores) for scores in reached if scores]
    return bool(averages) and max(score for _, score in curve) < statistics.median(averages)


def decays_below(curve: Curve, ended: Sequence[Curve]) -> bool:
    """Return whether a trial is unlikely to beat the best score by the step at which the longest trial ended.

    Vertex AI predicts the final score with a Gaussian process. This function fits the power law a + b x^-c by least
    squares. The deviation of the measurements from the fitted curve determines the margin.
    """
    points = [point for point in curve if point[0] > 0]
    end = max(rival[-1][0] for rival in ended)
    if len({x for x, _ in points}) < DECAY_LEAST or end <= points[-1][0]:
        return False
    scores = [score for _, score in points]
    fits = []
    for rate in DECAY_RATES:
        powers = [(x / end) ** -rate for x, _ in points]
        b, a = statistics.linear_regression(powers, scores)
        squares = sum((a + b * power - score) ** 2 for power, score in zip(powers, scores, strict=True))
        fits.append((math.sqrt(squares / (len(points) - 3)), a + b))  # at the end, x / end is 1
    deviation, final = min(fits)
    best = max(score for rival in ended for _, score in rival)
    return final + DECAY_MARGIN * deviation < best


def heads_below(curve: Curve, ended: Sequence[Curve], rule: StudySpec.ConvexAutomatedStoppingSpec) -> bool:
    """Return whether, at the last step, the line through a trial's last measurements is below the best score.

    A curve that flattens stays below the line through its last measurements. Vertex AI's regression method isn't
    public.
    Source: google-cloud-aiplatform 2.7.0, StudySpec.ConvexAutomatedStoppingSpec.
    """
    least = rule.min_measurement_count or CONVEX_LEAST
    end = rule.max_step_count or max(rival[-1][0] for rival in ended)
    last = curve[-max(least, 2) :]
    begun = len(last) >= max(least, 2) and len(ended) > least and curve[-1][0] > (rule.min_step_count or end / 10)
    if not (begun and last[0][0] < last[-1][0] < end):
        return False
    slope, intercept = statistics.linear_regression(*zip(*last, strict=True))
    best = max(score for rival in ended for _, score in rival)
    return bool(slope and slope * end + intercept < best)


def arguments(parameters: Mapping[str, Value]) -> list[str]:
    """Return a trial's parameters as flags in the form `--ID=VALUE`."""
    return [f"--{id}={shown(value)}" for id, value in parameters.items()]


def _grid(parameters: list[ParameterSpec]) -> Iterator[dict[str, Value]]:
    """Yield all combinations of parameter values. The last parameter varies fastest."""
    if not parameters:
        yield {}
        return
    first, *later = parameters
    for value in values_of(first):
        children = [child.parameter_spec for child in first.conditional_parameter_specs if is_active(child, value)]
        for values in _grid([*children, *later]):
            yield {first.parameter_id: value, **values}


def _study(spec: StudySpec, seed: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    minimize = StudySpec.MetricSpec.GoalType.MINIMIZE  # unspecified means MAXIMIZE
    directions: list[Any] = ["minimize" if metric.goal == minimize else "maximize" for metric in spec.metrics]
    if spec.algorithm == StudySpec.Algorithm.RANDOM_SEARCH:
        sampler: Any = optuna.samplers.RandomSampler(seed)
    else:  # constant_liar prevents parallel trials from trying the same parameters
        sampler = optuna.samplers.TPESampler(constant_liar=True, seed=seed)
    return optuna.create_study(directions=directions, sampler=sampler)


def _suggest(
    draw: Callable[[str, ParameterSpec], Value], parameters: Sequence[ParameterSpec], path: str = ""
) -> dict[str, Value]:
    """Suggest a value for each parameter and for each conditional parameter that these values activate.

    In optuna, a parameter's name is its path in the study, because two branches can contain parameters with the same
    name.
    """
    chosen: dict[str, Value] = {}
    for index, parameter in enumerate(parameters):
        name = f"{path}{index}"
        value = draw(name, parameter)
        chosen[parameter.parameter_id] = value
        for branch, child in enumerate(parameter.conditional_parameter_specs):
            if is_active(child, value):
                chosen |= _suggest(draw, [child.parameter_spec], f"{name}.{branch}.")
    return chosen


def _draw(trial: Any, name: str, parameter: ParameterSpec) -> Value:
    kind = kind_of(parameter)
    if kind == "categorical_value_spec":
        return str(trial.suggest_categorical(name, values_of(parameter)))
    if kind == "discrete_value_spec":  # use the index, because optuna has no scale for such values
        values: Sequence[Value] = values_of(parameter)
        return values[int(trial.suggest_int(name, 0, len(values) - 1))]
    bounds = getattr(parameter, kind)
    suggest = trial.suggest_float if kind == "double_value_spec" else trial.suggest_int
    value = suggest(name, bounds.min_value, bounds.max_value, log=parameter.scale_type in LOGARITHMIC)
    return _mirrored(parameter, bounds, value)


def _undrawn(parameter: ParameterSpec, value: Any) -> Value:
    """Return the value that optuna must suggest to produce this parameter value."""
    kind = kind_of(parameter)
    if kind == "categorical_value_spec":
        return str(value)
    if kind == "discrete_value_spec":
        return values_of(parameter).index(value)
    return _mirrored(parameter, getattr(parameter, kind), value)


def _mirrored(parameter: ParameterSpec, bounds: Any, value: float) -> float:
    """Return the value, clamped to the parameter's bounds.

    On a reverse log scale, first mirror the value between the bounds.
    """
    if parameter.scale_type == Scale.UNIT_REVERSE_LOG_SCALE:
        value = bounds.max_value - (value - bounds.min_value)
    within: float = min(max(value, bounds.min_value), bounds.max_value)
    return within

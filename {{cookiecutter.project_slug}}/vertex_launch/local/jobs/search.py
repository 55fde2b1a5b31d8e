"""From a study to trials: what the next one tries, which measurement counts, and whether to end one early.

The service searches with Google Vizier; here optuna does, and is imported only when a study begins.
study_validation.py has said before what is wrong with a study.
"""

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.cloud.aiplatform_v1.types import StudySpec

from vertex_launch import jsons
from vertex_launch.study_validation import is_active, kind_of, values_of

ParameterSpec = StudySpec.ParameterSpec
Scale = ParameterSpec.ScaleType
Value: TypeAlias = float | int | str
Curve: TypeAlias = list[tuple[float, float]]  # steps or seconds, and a score: the objective, larger is better

BEST = StudySpec.MeasurementSelectionType.BEST_MEASUREMENT
DECAY_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
DECAY_LEAST = 4  # measurements, of which three decide the curve
DECAY_DOUBT = 2.0  # standard deviations


@dataclass(frozen=True)
class Suggestion:
    """What one trial tries."""

    id: str
    parameters: Mapping[str, Value]
    began: float  # seconds since 1970


@dataclass(frozen=True)
class Measurement:
    """What a trial reported at one step."""

    step: int
    time: float  # seconds since 1970
    metrics: Mapping[str, float]


class Search:
    """One study. Not thread-safe."""

    def __init__(self, spec: StudySpec, seed: int = 0) -> None:
        self._spec = spec
        self._goals = {metric.metric_id: metric.goal for metric in spec.metrics}
        self._asked = 0
        self._trials: dict[str, Any] = {}  # optuna's own, by id
        self._ended: list[Curve] = []
        gridded = spec.algorithm == StudySpec.Algorithm.GRID_SEARCH
        self._grid = _grid([*spec.parameters]) if gridded else None
        self._study: Any = None if gridded else _study(spec, seed)

    def ask(self) -> Suggestion | None:
        """The next trial, or None where a grid is exhausted."""
        id = str(self._asked + 1)
        if self._grid is not None:
            parameters = next(self._grid, None)
        else:
            self._trials[id] = self._study.ask()
            parameters = _suggest(self._trials[id], self._spec.parameters)
        if parameters is None:
            return None
        self._asked += 1
        return Suggestion(id, parameters, time.time())

    def tell(
        self, suggestion: Suggestion, metrics: Mapping[str, float] | None, measurements: Sequence[Measurement] = ()
    ) -> None:
        """How a trial ended: with these metrics, or failed; its measurements serve to stop others early."""
        trial = self._trials.pop(suggestion.id, None)
        if trial is not None and metrics is not None:
            self._study.tell(trial, [metrics[id] for id in self._goals])
        elif trial is not None:
            from optuna.trial import TrialState

            self._study.tell(trial, state=TrialState.FAIL)
        curve = self._curve(suggestion, measurements)
        if metrics is not None and curve:
            self._ended.append(curve)

    def final(self, measurements: Sequence[Measurement]) -> Measurement | None:
        """The measurement that counts; None if there is none with all metrics, or if it is not finite.

        The last one unless the study asks for the best, by its first metric.
        Source: google-cloud-aiplatform 2.7.0, StudySpec.MeasurementSelectionType.
        """
        whole = [measurement for measurement in measurements if self._goals.keys() <= measurement.metrics.keys()]
        finite = [measurement for measurement in whole if all(map(math.isfinite, measurement.metrics.values()))]
        if self._spec.measurement_selection_type == BEST:
            return max(finite, key=self._score, default=None)
        return whole[-1] if finite and whole[-1] is finite[-1] else None

    def should_stop(self, suggestion: Suggestion, measurements: Sequence[Measurement]) -> bool:
        """Whether a running trial is not worth its machines any more, by the rule that the study names."""
        curve = self._curve(suggestion, measurements)
        if not (curve and self._ended):
            return False
        if "median_automated_stopping_spec" in self._spec:
            return below_median(curve, self._ended)
        if "decay_curve_stopping_spec" in self._spec:
            return decays_below(curve, self._ended)
        return False

    def _score(self, measurement: Measurement) -> float:
        id, goal = next(iter(self._goals.items()))
        value = measurement.metrics.get(id, math.nan)
        return -value if goal == StudySpec.MetricSpec.GoalType.MINIMIZE else value

    def _curve(self, suggestion: Suggestion, measurements: Sequence[Measurement]) -> Curve:
        rule = self._spec.median_automated_stopping_spec or self._spec.decay_curve_stopping_spec
        points = [
            (one.time - suggestion.began if rule.use_elapsed_duration else float(one.step), self._score(one))
            for one in measurements
        ]
        return [(x, score) for x, score in points if math.isfinite(score)]


def below_median(curve: Curve, ended: Sequence[Curve]) -> bool:
    """Whether the trial's best is worse than the median of what the ended ones had on average up to its last report.

    Source: google-cloud-aiplatform 2.7.0, StudySpec.MedianAutomatedStoppingSpec.
    """
    until = curve[-1][0]
    reached = [[score for x, score in other if x <= until] for other in ended]
    averages = [statistics.fmean(scores) for scores in reached if scores]
    return bool(averages) and max(score for _, score in curve) < statistics.median(averages)


def decays_below(curve: Curve, ended: Sequence[Curve]) -> bool:
    """Whether the trial will hardly exceed the best one, at the place where the longest one ended.

    The service predicts with a Gaussian process. A stand-in: the power law a + b x^-c that fits best by least squares
    gives the final score, and the spread of the measurements around it the doubt.
    """
    import numpy as np

    points = np.array([point for point in curve if point[0] > 0])
    end = max(other[-1][0] for other in ended)
    if len(points) < DECAY_LEAST or end <= points[-1, 0]:
        return False
    fits = []
    for rate in DECAY_RATES:
        basis = np.stack([np.ones(len(points)), (points[:, 0] / end) ** -rate], axis=1)
        weights = np.linalg.lstsq(basis, points[:, 1], rcond=None)[0]
        spread = np.sqrt(np.square(basis @ weights - points[:, 1]).sum() / (len(points) - 3))
        fits.append((float(spread), float(weights.sum())))  # at the end, x / end is 1
    spread, final = min(fits)
    best = max(score for other in ended for _, score in other)
    return bool(final + DECAY_DOUBT * spread < best)


def arguments(parameters: Mapping[str, Value]) -> list[str]:
    """A trial's parameters as flags, `--ID=VALUE`; 64.0 is written 64, for a trainer that wants an integer."""
    return [f"--{id}={str(value).removesuffix('.0')}" for id, value in parameters.items()]


def measurements(text: str, ids: Sequence[str]) -> list[Measurement]:
    """What a file in cloudml-hypertune's format tells about these metrics, in the order of its lines.

    Each line has one metric; those of one step belong together. What is cut off or no such line is left out.
    """
    found: list[Measurement] = []
    for line in text.splitlines():
        one = _measurement(line, ids)
        if one is None:
            continue
        if found and found[-1].step == one.step and found[-1].metrics.keys().isdisjoint(one.metrics):
            one = Measurement(one.step, one.time, {**found.pop().metrics, **one.metrics})
        found.append(one)
    return found


def _measurement(line: str, ids: Sequence[str]) -> Measurement | None:
    try:
        entry = jsons.loads(line)
        metrics = {id: float(entry[id]) for id in ids if id in entry}
        step, when = int(entry["global_step"]), float(entry["timestamp"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return Measurement(step, when, metrics) if metrics else None


def _grid(parameters: list[ParameterSpec]) -> Iterator[dict[str, Value]]:
    """Every combination, the last parameter changing fastest."""
    if not parameters:
        yield {}
        return
    first, *rest = parameters
    for value in values_of(first):
        children = [child.parameter_spec for child in first.conditional_parameter_specs if is_active(child, value)]
        for others in _grid([*children, *rest]):
            yield {first.parameter_id: value, **others}


def _study(spec: StudySpec, seed: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    minimize = StudySpec.MetricSpec.GoalType.MINIMIZE  # unspecified means MAXIMIZE
    direction = optuna.study.StudyDirection
    directions = [direction.MINIMIZE if metric.goal == minimize else direction.MAXIMIZE for metric in spec.metrics]
    if spec.algorithm == StudySpec.Algorithm.RANDOM_SEARCH:
        return optuna.create_study(directions=directions, sampler=optuna.samplers.RandomSampler(seed))
    # constant_liar: trials that run at the same time must not all try the same.
    sampler = optuna.samplers.TPESampler(constant_liar=True, seed=seed)
    return optuna.create_study(directions=directions, sampler=sampler)


def _suggest(trial: Any, parameters: Sequence[ParameterSpec], path: str = "") -> dict[str, Value]:
    """A value for each parameter and for those that its value brings along.

    optuna knows them by their path: two branches may have parameters of the same name.
    """
    chosen: dict[str, Value] = {}
    for index, parameter in enumerate(parameters):
        name = f"{path}{index}"
        value = _draw(trial, name, parameter)
        chosen[parameter.parameter_id] = value
        for branch, child in enumerate(parameter.conditional_parameter_specs):
            if is_active(child, value):
                chosen |= _suggest(trial, [child.parameter_spec], f"{name}.{branch}.")
    return chosen


def _draw(trial: Any, name: str, parameter: ParameterSpec) -> Value:
    kind = kind_of(parameter)
    if kind == "categorical_value_spec":
        return str(trial.suggest_categorical(name, values_of(parameter)))
    if kind == "discrete_value_spec":  # by position, which is as good as any scale
        values: Sequence[Value] = values_of(parameter)
        return values[int(trial.suggest_int(name, 0, len(values) - 1))]
    bounds = getattr(parameter, kind)
    suggest = trial.suggest_float if kind == "double_value_spec" else trial.suggest_int
    logarithmic = parameter.scale_type in (Scale.UNIT_LOG_SCALE, Scale.UNIT_REVERSE_LOG_SCALE)
    value = suggest(name, bounds.min_value, bounds.max_value, log=logarithmic)
    if parameter.scale_type == Scale.UNIT_REVERSE_LOG_SCALE:  # the mirror of log
        value = bounds.max_value - (value - bounds.min_value)
    drawn: Value = min(max(value, bounds.min_value), bounds.max_value)
    return drawn

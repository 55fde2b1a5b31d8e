"""Validates the study of a hyperparameter tuning job, and provides the values of the study's parameters.

`vertex-launch check` shows the docstrings of the `..._findings` functions as rules.
Source, unless a docstring gives a different one: google-cloud-aiplatform 2.7.0, the documentation of StudySpec.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch.errors import Finding, Findings
from vertex_launch.job.job_resource import camel

ParameterSpec = StudySpec.ParameterSpec
Conditional = ParameterSpec.ConditionalParameterSpec
Scale = ParameterSpec.ScaleType

# The condition for each kind of parent parameter. A double parameter doesn't have discrete values to list.
CONDITIONS = {
    "integer_value_spec": "parent_int_values",
    "discrete_value_spec": "parent_discrete_values",
    "categorical_value_spec": "parent_categorical_values",
}
KINDS = ("double_value_spec", *CONDITIONS)
LOGARITHMIC = (Scale.UNIT_LOG_SCALE, Scale.UNIT_REVERSE_LOG_SCALE)
APART = 1e-10  # numbers that differ by less are treated as equal
DISCRETE_LIMIT = 1000
# Trials store all numbers as doubles, so integers must remain exact and the width of a range must be finite.
LARGEST = {"integer_value_spec": 2**53, "double_value_spec": 5e307}

# Fields that Google documents for Vizier, but that the local Vertex, which uses Optuna, doesn't implement.
NOT_HERE = {
    "study_stopping_config": "use maxTrialCount and maxFailedTrialCount",
    "convex_automated_stopping_spec.learning_rate_parameter_name": "remove this field",
    "convex_automated_stopping_spec.update_all_stopped_trials": (
        "remove this field, because stopped trials always keep their measurements"
    ),
}
STOPPING = ("median_automated_stopping_spec", "decay_curve_stopping_spec", "convex_automated_stopping_spec")


@dataclass(frozen=True)
class _Node:
    """A parameter, its path, and the parent values that activate it."""

    place: str
    spec: ParameterSpec
    conditions: Mapping[str, Collection[Any]]  # keyed by the parent's path

    @property
    def kind(self) -> str:
        return kind_of(self.spec)

    @property
    def values_place(self) -> str:
        return f"{self.place}.{camel(self.kind)}"


def kind_of(parameter: ParameterSpec) -> str:
    """Return the field that contains a parameter's values, such as `double_value_spec`.

    Return "" if the field is missing.
    """
    return ParameterSpec.pb(parameter).WhichOneof("parameter_value_spec") or ""


def values_of(parameter: ParameterSpec) -> Sequence[Any]:
    """Return all values of an integer, discrete, or categorical parameter, in the order of the study."""
    if "integer_value_spec" in parameter:
        smallest, largest = _bounds(parameter)
        return range(smallest, largest + 1)
    return [*getattr(parameter, kind_of(parameter)).values]


def described(parameter: ParameterSpec) -> str:
    """Return a parameter's range or values as text, such as `0.0001 to 0.03` or `16, 32, 64`."""
    if kind_of(parameter) in LARGEST:
        return "{:g} to {:g}".format(*_bounds(parameter))
    return ", ".join(map(shown, values_of(parameter)))


def shown(value: float | int | str) -> str:
    """Return a parameter value as text for a flag.

    For 64.0, return `64`, because a trainer might expect an integer.
    """
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def is_active(child: Conditional, value: Any) -> bool:
    """Return whether a conditional parameter is active when its parent has this value."""
    return _is_one_of(value, _condition(child))


def findings(job: HyperparameterTuningJob) -> Findings:
    """Yield a finding for each reason why the local Vertex rejects the study.

    This function doesn't check the job that each trial runs, because the rules for custom jobs check it.
    """
    for check in (count_findings, metric_findings, parameter_findings, local_findings):
        yield from check(job)


def count_findings(job: HyperparameterTuningJob) -> Findings:
    """maxTrialCount and parallelTrialCount must be at least 1, and maxFailedTrialCount must not be negative."""
    most, parallel, failed = job.max_trial_count, job.parallel_trial_count, job.max_failed_trial_count
    if most < 1:
        yield Finding(
            "maxTrialCount", f"must be 1 or more, not {most}", "set the number of trials that you want to pay for"
        )
    if parallel < 1:
        cure = "choose a small number, because later trials learn from earlier ones"
        yield Finding("parallelTrialCount", f"must be 1 or more, not {parallel}", cure)
    if failed < 0:
        yield Finding("maxFailedTrialCount", f"must not be {failed}", "write 0 to let the service decide")


def metric_findings(job: HyperparameterTuningJob) -> Findings:
    """A study must have a metric, and each metric must have a unique name without white space."""
    study = job.study_spec
    if not study.metrics:
        yield Finding(
            "studySpec.metrics", "the study doesn't have a metric, so trials can't be compared", "add a metric"
        )
    repeated = Counter(metric.metric_id for metric in study.metrics)
    for index, metric in enumerate(study.metrics):
        place = f"studySpec.metrics[{index}].metricId"
        yield from _of_name(metric.metric_id, place)
        if repeated[metric.metric_id] > 1:
            yield Finding(place, f'the metric "{metric.metric_id}" occurs twice', "keep one of them")


def parameter_findings(job: HyperparameterTuningJob) -> Findings:
    """A study must have a parameter, and each parameter must have a unique name and values that trials can try."""
    nodes = [*_nodes(job.study_spec)]
    if not nodes:
        yield Finding("studySpec.parameters", "the study doesn't have a parameter to tune", "add a parameter")
    for node in nodes:
        yield from _of_values(node, job.study_spec.algorithm)
        yield from _of_conditions(node, job.study_spec)
    yield from _of_ids(nodes)


def parameter_ids(study: StudySpec) -> Iterator[tuple[str, str]]:
    """Return the path and the name of every parameter, including conditional ones."""
    return ((node.place, node.spec.parameter_id) for node in _nodes(study))


def tried(study: StudySpec) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the path of each parameter's values, the parameter's name, and values that a trial might use."""
    for node in _nodes(study):
        values: Iterable[float | int | str] = ()
        if node.kind in LARGEST:
            least, most = _bounds(node.spec)
            values = (least, most) if node.kind == "integer_value_spec" else (least, least + (most - least) / 3)
        elif node.kind:
            values = values_of(node.spec)
        yield node.values_place, node.spec.parameter_id, [*map(shown, values)]


def local_findings(job: HyperparameterTuningJob) -> Findings:
    """The local Vertex should support all fields of the study.
    Otherwise: Vertex AI accepts the job, but the local Vertex rejects it."""
    study, ignored = job.study_spec, "the local Vertex doesn't support this field"
    for index, metric in enumerate(study.metrics):
        if "safety_config" in metric:
            yield Finding(
                f"studySpec.metrics[{index}].safetyConfig", ignored, "remove this field to run the job locally"
            )
    for path, cure in NOT_HERE.items():
        if attrgetter(path)(study):
            yield Finding(f"studySpec.{camel(path)}", ignored, cure)
    for field in STOPPING:
        if field in study and len(study.metrics) > 1:
            fault = "early stopping compares trials by one metric, but the study has several metrics"
            yield Finding(f"studySpec.{camel(field)}", fault, "keep one metric")
    for node in _nodes(study):
        if node.kind in LARGEST and max(map(abs, _bounds(node.spec))) > LARGEST[node.kind]:
            fault = f"the range exceeds {LARGEST[node.kind]:g}, above which numbers lose precision"
            yield Finding(node.values_place, fault, "narrow the range")


def _bounds(parameter: ParameterSpec) -> tuple[Any, Any]:
    values = getattr(parameter, kind_of(parameter))
    return values.min_value, values.max_value


def _nodes(study: StudySpec) -> Iterator[_Node]:
    for index, spec in enumerate(study.parameters):
        yield from _with_children(_Node(f"studySpec.parameters[{index}]", spec, {}))


def _with_children(node: _Node) -> Iterator[_Node]:
    yield node
    for index, child in enumerate(node.spec.conditional_parameter_specs):
        if child.parameter_spec.parameter_id == node.spec.parameter_id != "":
            continue  # `_misplaced` reports this problem
        place = f"{node.place}.conditionalParameterSpecs[{index}].parameterSpec"
        conditions = {**node.conditions, node.place: _condition(child)}
        yield from _with_children(_Node(place, child.parameter_spec, conditions))


def _condition(child: Conditional) -> Collection[Any]:
    field = Conditional.pb(child).WhichOneof("parent_value_condition")
    return [*getattr(child, field).values] if field else []


def _is_one_of(value: Any, values: Collection[Any]) -> bool:
    if isinstance(value, float):
        return any(abs(value - candidate) <= APART for candidate in values)
    return value in values


def _of_name(name: str, place: str) -> Findings:
    if not name:
        yield Finding(place, "is missing", "give it a name")
    elif name.split() != [name]:
        yield Finding(place, f'"{name}" contains white space', f"write {'_'.join(name.split()) or 'a name'}")


def _of_values(node: _Node, algorithm: StudySpec.Algorithm) -> Findings:
    yield from _of_name(node.spec.parameter_id, f"{node.place}.parameterId")
    if not node.kind:
        yield Finding(node.place, "has no values to try", f"add one of {', '.join(map(camel, KINDS))}")
    elif node.kind in LARGEST:
        yield from _of_range(node)
    else:
        yield from _of_list(node)
    if node.kind == "double_value_spec" and algorithm == StudySpec.Algorithm.GRID_SEARCH:
        yield Finding(
            node.values_place, "GRID_SEARCH can't try all values of a range", "list values in a discreteValueSpec"
        )


def _of_range(node: _Node) -> Findings:
    smallest, largest = _bounds(node.spec)
    if smallest > largest:
        yield Finding(node.values_place, f"minValue {smallest:g} is above maxValue {largest:g}", "swap the two")
    elif node.spec.scale_type in LOGARITHMIC and smallest <= 0:
        cure = "raise minValue above 0, or use UNIT_LINEAR_SCALE"
        yield Finding(node.values_place, f"minValue {smallest:g} has no logarithm", cure)


def _of_list(node: _Node) -> Findings:
    values, place = values_of(node.spec), f"{node.values_place}.values"
    if not values:
        yield Finding(place, "the list is empty", "list at least one value")
    elif len(set(values)) < len(values):
        yield Finding(place, "the list contains a value twice", "keep one of them")
    elif node.kind == "discrete_value_spec":
        if any(after - before < APART for before, after in pairwise(values)):
            yield Finding(place, f"each value must exceed the previous one by at least {APART}", "sort the values")
        if len(values) > DISCRETE_LIMIT:
            fault = f"Vertex AI accepts at most {DISCRETE_LIMIT} values, not {len(values)}"
            yield Finding(place, fault, "use a doubleValueSpec")
        if node.spec.scale_type in LOGARITHMIC and min(values) <= 0:
            cure = "keep all values above 0, or use UNIT_LINEAR_SCALE"
            yield Finding(place, f"{min(values):g} has no logarithm", cure)


def _of_conditions(node: _Node, study: StudySpec) -> Findings:
    name, field = node.spec.parameter_id, CONDITIONS.get(node.kind, "")
    for index, child in enumerate(node.spec.conditional_parameter_specs):
        place = f"{node.place}.conditionalParameterSpecs[{index}]"
        if misplaced := _misplaced(node, child, study):
            yield Finding(place, *misplaced)
        elif not field:
            fault = f"depends on discrete values, but its parent has {camel(node.kind) or 'no values'}"
            yield Finding(place, fault, "use a discreteValueSpec in the parent")
        elif not _condition(child) or field not in child:
            yield Finding(place, f"the values of {name} are missing", f"add {camel(field)}")
        else:
            for value in _condition(child):
                if not _is_one_of(value, values_of(node.spec)):
                    cure = f"use a value from its {camel(node.kind)}"
                    yield Finding(f"{place}.{camel(field)}.values", f'"{value}" isn\'t a value of {name}', cure)


def _misplaced(node: _Node, child: Conditional, study: StudySpec) -> tuple[str, str] | None:
    """Return the problem and the solution if a conditional parameter is nested under itself or the wrong parameter."""
    name = child.parameter_spec.parameter_id
    owners = [one.parameter_id for one in study.parameters if _has_values(one, child)]
    parent = owners[0] if owners else "the parameter that it depends on"
    cure = f"move {name or 'it'} and its values to the conditionalParameterSpecs of {parent}"
    if name and name == node.spec.parameter_id:
        return f"{name} depends on itself, but it must depend on a different parameter", cure
    if owners and not _has_values(node.spec, child):
        return f"this parameter is under {node.spec.parameter_id}, but its values belong to {parent}", cure
    return None


def _has_values(parameter: ParameterSpec, child: Conditional) -> bool:
    """Return whether a parameter's values include all values that activate a conditional parameter."""
    field, values = CONDITIONS.get(kind_of(parameter), ""), _condition(child)
    return bool(field and field in child and values) and all(_is_one_of(one, values_of(parameter)) for one in values)


def _of_ids(nodes: Sequence[_Node]) -> Findings:
    """Yield a finding for each parameter that has the same name as another parameter in the same trial."""
    by_name: dict[str, list[_Node]] = defaultdict(list)
    for node in nodes:
        name = node.spec.parameter_id
        twin = next((twin for twin in by_name[name] if name and not _exclude_each_other(node, twin)), None)
        if twin:
            fault = f'{twin.place} is also called "{name}"'
            yield Finding(f"{node.place}.parameterId", fault, "rename one of them")
        by_name[name].append(node)


def _exclude_each_other(first: _Node, second: _Node) -> bool:
    shared = first.conditions.keys() & second.conditions.keys()
    return any(
        not any(_is_one_of(value, second.conditions[place]) for value in first.conditions[place]) for place in shared
    )

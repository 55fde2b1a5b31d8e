"""What is wrong with the study of a hyperparameter tuning job, and what its parameters may be.

Source, where no other is named: google-cloud-aiplatform 2.7.0, the documentation of StudySpec and its parts.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from google.cloud.aiplatform_v1.types import HyperparameterTuningJob, StudySpec

ParameterSpec = StudySpec.ParameterSpec
Conditional = ParameterSpec.ConditionalParameterSpec
Scale = ParameterSpec.ScaleType

KINDS = {
    "double_value_spec": "doubleValueSpec",
    "integer_value_spec": "integerValueSpec",
    "discrete_value_spec": "discreteValueSpec",
    "categorical_value_spec": "categoricalValueSpec",
}
# Which condition goes with which parent; a double has no values that one could name.
CONDITIONS = {
    "integer_value_spec": ("parent_int_values", "parentIntValues"),
    "discrete_value_spec": ("parent_discrete_values", "parentDiscreteValues"),
    "categorical_value_spec": ("parent_categorical_values", "parentCategoricalValues"),
}
LOGARITHMIC = (Scale.UNIT_LOG_SCALE, Scale.UNIT_REVERSE_LOG_SCALE)
PARAMETERS = "studySpec.parameters"
APART = 1e-10  # closer numbers are the same
DISCRETE_LIMIT = 1000
# Trials carry all numbers as doubles: whole ones must survive that, and a range must have a width.
LARGEST = {"integer_value_spec": 2**53, "double_value_spec": 5e307}

# What Google documents for Vizier, and neither optuna nor the code around it does here.
NOT_HERE = {
    "convex_automated_stopping_spec": (
        "convexAutomatedStoppingSpec",
        "is not followed by the local Vertex; use medianAutomatedStoppingSpec or decayCurveStoppingSpec",
    ),
    "study_stopping_config": (
        "studyStoppingConfig",
        "is not followed by the local Vertex; use maxTrialCount and maxFailedTrialCount",
    ),
}
STOPPING = {
    "median_automated_stopping_spec": "medianAutomatedStoppingSpec",
    "decay_curve_stopping_spec": "decayCurveStoppingSpec",
}


class Fault(NamedTuple):
    """Where in the tuning job, and what is wrong there."""

    place: str
    text: str


Faults = Iterator[Fault]


@dataclass(frozen=True)
class _Node:
    """A parameter, where it stands, and for which values of which parents it is there at all."""

    place: str
    spec: ParameterSpec
    conditions: Mapping[str, Collection[Any]]  # by the parent's place


def kind_of(parameter: ParameterSpec) -> str:
    """The field that holds its values, such as `double_value_spec`, or "" """
    return ParameterSpec.pb(parameter).WhichOneof("parameter_value_spec") or ""


def values_of(parameter: ParameterSpec) -> Sequence[Any]:
    """All values of an integer, discrete or categorical parameter, in order."""
    if "integer_value_spec" in parameter:
        return range(parameter.integer_value_spec.min_value, parameter.integer_value_spec.max_value + 1)
    return [*getattr(parameter, kind_of(parameter)).values]


def described(parameter: ParameterSpec) -> str:
    """What it may be, for people: `0.0001 to 0.03` or `16, 32, 64`."""
    kind = kind_of(parameter)
    if kind in LARGEST:
        bounds = getattr(parameter, kind)
        return f"{bounds.min_value:g} to {bounds.max_value:g}"
    return ", ".join(str(value).removesuffix(".0") for value in values_of(parameter))


def is_active(child: Conditional, value: Any) -> bool:
    """Whether this value of its parent brings a conditional parameter along."""
    return _is_one_of(value, _condition(child))


def faults(job: HyperparameterTuningJob) -> Faults:
    """What the local Vertex refuses of the search; the trials' own job has other rules."""
    yield from count_faults(job)
    yield from metric_faults(job.study_spec)
    yield from parameter_faults(job.study_spec)
    yield from local_faults(job.study_spec)


def count_faults(job: HyperparameterTuningJob) -> Faults:
    """Numbers of trials that no search can have."""
    most, parallel = job.max_trial_count, job.parallel_trial_count
    if most < 1:
        yield Fault("maxTrialCount", f"must be 1 or more, not {most}; write how many trials you would pay for")
    if parallel < 1:
        cure = "the fewer at once, the more each learns from those before it"
        yield Fault("parallelTrialCount", f"must be 1 or more, not {parallel}; {cure}")
    if job.max_failed_trial_count < 0:
        fault = f"is {job.max_failed_trial_count}; write 0 to leave it to the service"
        yield Fault("maxFailedTrialCount", fault)


def metric_faults(study: StudySpec) -> Faults:
    """Metrics by which trials cannot be compared."""
    if not study.metrics:
        yield Fault("studySpec.metrics", "has no metric, so no trial is better than another; add one")
    repeated = Counter(metric.metric_id for metric in study.metrics)
    for index, metric in enumerate(study.metrics):
        place = f"studySpec.metrics[{index}]"
        yield from _name_faults(metric.metric_id, f"{place}.metricId")
        if repeated[metric.metric_id] > 1:
            yield Fault(f"{place}.metricId", f'"{metric.metric_id}" is there twice; keep one of them')


def parameter_faults(study: StudySpec) -> Faults:
    """Parameters without a name or without values to try."""
    nodes = [*_nodes(study.parameters, PARAMETERS)]
    if not nodes:
        yield Fault(PARAMETERS, "has no parameter, so there is nothing to tune; add one")
    for node in nodes:
        yield from _value_faults(node, study.algorithm)
        yield from _condition_faults(node)
    yield from _id_faults(nodes)


def parameter_ids(study: StudySpec) -> Iterator[tuple[str, str]]:
    """The place and the name of every parameter, those that depend on others included."""
    for node in _nodes(study.parameters, PARAMETERS):
        yield node.place, node.spec.parameter_id


def local_faults(study: StudySpec) -> Faults:
    """What Vertex AI may take and the local Vertex cannot follow."""
    for index, metric in enumerate(study.metrics):
        if "safety_config" in metric:
            place = f"studySpec.metrics[{index}].safetyConfig"
            yield Fault(place, "is not followed by the local Vertex; remove it to run the search here")
    for field, (key, fault) in NOT_HERE.items():
        if field in study:
            yield Fault(f"studySpec.{key}", fault)
    for field, key in STOPPING.items():
        if field in study and len(study.metrics) > 1:
            yield Fault(f"studySpec.{key}", "compares trials by one metric, and there are more; keep one metric")
    for node in _nodes(study.parameters, PARAMETERS):
        yield from _size_faults(node)


def _nodes(
    specs: Sequence[ParameterSpec], place: str, conditions: Mapping[str, Collection[Any]] = MappingProxyType({})
) -> Iterator[_Node]:
    for index, spec in enumerate(specs):
        yield from _node(spec, f"{place}[{index}]", conditions)


def _node(spec: ParameterSpec, place: str, conditions: Mapping[str, Collection[Any]]) -> Iterator[_Node]:
    """A parameter and all below it."""
    yield _Node(place, spec, conditions)
    for index, child in enumerate(spec.conditional_parameter_specs):
        below = f"{place}.conditionalParameterSpecs[{index}].parameterSpec"
        yield from _node(child.parameter_spec, below, {**conditions, place: _condition(child)})


def _condition(child: Conditional) -> Collection[Any]:
    field = Conditional.pb(child).WhichOneof("parent_value_condition")
    return [*getattr(child, field).values] if field else []


def _is_one_of(value: Any, values: Collection[Any]) -> bool:
    if isinstance(value, float):
        return any(abs(value - other) <= APART for other in values)
    return value in values


def _name_faults(name: str, place: str) -> Faults:
    if not name:
        yield Fault(place, "is missing; give it a name")
    elif name.split() != [name]:
        yield Fault(place, f'"{name}" has white space in it; write {"_".join(name.split()) or "a name"}')


def _value_faults(node: _Node, algorithm: StudySpec.Algorithm) -> Faults:
    yield from _name_faults(node.spec.parameter_id, f"{node.place}.parameterId")
    kind = kind_of(node.spec)
    if not kind:
        yield Fault(node.place, f"has no values to choose from; add one of {', '.join(KINDS.values())}")
        return
    place = f"{node.place}.{KINDS[kind]}"
    if kind in ("double_value_spec", "integer_value_spec"):
        yield from _range_faults(node.spec, kind, place)
    else:
        yield from _list_faults(node.spec, place)
    if kind == "double_value_spec" and algorithm == StudySpec.Algorithm.GRID_SEARCH:
        yield Fault(place, "has no end of values for GRID_SEARCH; list some in a discreteValueSpec")


def _range_faults(spec: ParameterSpec, kind: str, place: str) -> Faults:
    smallest, largest = getattr(spec, kind).min_value, getattr(spec, kind).max_value
    if smallest > largest:
        yield Fault(place, f"minValue {smallest:g} is above maxValue {largest:g}; exchange them")
    elif spec.scale_type in LOGARITHMIC and smallest <= 0:
        yield Fault(place, f"minValue {smallest:g} has no logarithm; raise it above 0 or use UNIT_LINEAR_SCALE")


def _size_faults(node: _Node) -> Faults:
    kind = kind_of(node.spec)
    if kind in LARGEST:
        bounds = getattr(node.spec, kind)
        if max(abs(bounds.min_value), abs(bounds.max_value)) > LARGEST[kind]:
            place = f"{node.place}.{KINDS[kind]}"
            yield Fault(place, f"goes beyond {LARGEST[kind]:g}, where numbers lose digits; narrow it")


def _list_faults(spec: ParameterSpec, place: str) -> Faults:
    values = values_of(spec)
    if not values:
        yield Fault(f"{place}.values", "has no value; list at least one")
    elif len(set(values)) < len(values):
        yield Fault(f"{place}.values", "has a value twice; keep one of them")
    elif "discrete_value_spec" in spec:
        yield from _discrete_faults(spec, values, f"{place}.values")


def _discrete_faults(spec: ParameterSpec, values: Sequence[float], place: str) -> Faults:
    if any(after - before < APART for before, after in pairwise(values)):
        yield Fault(place, f"must increase by {APART} or more; sort them")
    if len(values) > DISCRETE_LIMIT:
        yield Fault(place, f"has {len(values)} values, and Vertex AI takes {DISCRETE_LIMIT}; use a doubleValueSpec")
    if spec.scale_type in LOGARITHMIC and min(values) <= 0:
        yield Fault(place, f"{min(values):g} has no logarithm; keep values above 0 or use UNIT_LINEAR_SCALE")


def _condition_faults(node: _Node) -> Faults:
    kind = kind_of(node.spec)
    for index, child in enumerate(node.spec.conditional_parameter_specs):
        place = f"{node.place}.conditionalParameterSpecs[{index}]"
        if kind not in CONDITIONS:
            parent = KINDS.get(kind, "nothing")
            yield Fault(place, f"depends on single values, and its parent has {parent}; use a discreteValueSpec there")
            continue
        field, key = CONDITIONS[kind]
        if not _condition(child) or field not in child:
            yield Fault(place, f"does not say for which values of {node.spec.parameter_id}; write {key}")
            continue
        for value in _condition(child):
            if not _is_one_of(value, values_of(node.spec)):
                fault = f'"{value}" is no value of {node.spec.parameter_id}; use one that its {KINDS[kind]} has'
                yield Fault(f"{place}.{key}.values", fault)


def _id_faults(nodes: Sequence[_Node]) -> Faults:
    """A name may come twice only where one trial never has both."""
    known: dict[str, list[_Node]] = defaultdict(list)
    for node in nodes:
        name = node.spec.parameter_id
        other = next((other for other in known[name] if name and not _exclude_each_other(node, other)), None)
        if other:
            fault = f'"{name}" is the name of {other.place}, too; rename one of them'
            yield Fault(f"{node.place}.parameterId", fault)
        known[name].append(node)


def _exclude_each_other(one: _Node, other: _Node) -> bool:
    shared = one.conditions.keys() & other.conditions.keys()
    return any(
        not any(_is_one_of(value, other.conditions[place]) for value in one.conditions[place]) for place in shared
    )

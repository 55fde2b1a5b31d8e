"""Suggestions for replacing hardware, strategy, and region names that Vertex AI doesn't recognize.

Users enter names that NVIDIA, Compute Engine, Kubernetes, or other clouds use, such as L4, nvidia-h100-80gb, v5litepod,
or a2-ultra. Because hardware names differ only by a model name or a number, the most similar name often belongs to a
different machine. Therefore, a suggested name always contains the model that the user entered. If Vertex AI doesn't
offer the model, this module doesn't suggest a different one.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from vertex_launch.errors import letters, listed, nearest
from vertex_launch.facts.catalog import Catalog, read, standard

SHOWN = 9  # names in a suggestion
SUCH_AS = 3  # names as examples, if there are more than SHOWN
CLOSE = 0.75  # similarity from 0 to 1; short words are similar by chance

FACTS = read(Path(__file__).with_suffix(".yaml"))
MODEL = re.compile("([a-z]+) ([0-9]+)(?: ([a-wyz](?![a-z])|(?<=v 7 )x))?")
GENERATION = re.compile("v[2-7][a-z]?")  # a model of TPUs
STRATEGIES, CONTINENTS = FACTS["strategies"], FACTS["continents"]
WINDS = {wind[0]: wind for wind in ("central", "north", "south", "east", "west")}
_WIND = f"(?:(?:{'|'.join(WINDS.values())}|[{''.join(WINDS)}]){{0,2}})"


class _Accelerator(NamedTuple):
    """The parts of an accelerator's name: the model, such as h100 or v5e, and the other words, such as mega or 80."""

    model: str
    rest: frozenset[str]


class _MachineType(NamedTuple):
    """The parts of a machine type's name, such as g2, standard, and 8. Missing parts have the value "" or 0."""

    family: str
    kind: str
    size: int


def accelerator_cure(word: str, names: Collection[str]) -> str:
    """Return advice on how to correct an accelerator name that the API doesn't recognize."""
    known, meant = standard(), _accelerator(word)
    current = [name for name in names if name not in known.retired_accelerators]
    if guess := accelerator(word, current):
        return f"did you mean {guess}?"
    hosts = [machine.name for machine in known.machines.values() if _is(meant.model, machine.tpu)]
    return f"remove it: {listed(hosts, 'or')} includes it" if hosts else f"use one of {', '.join(current)}"


def accelerator(word: str, names: Iterable[str]) -> str:
    """Return the most similar accelerator of the same model, or "" if there is none."""
    meant, is_gpu = _accelerator(word), re.search("nvidia|tesla|[gr]tx", word.casefold())
    same = [name for name in names if _is(meant.model, name) and not (is_gpu and name.startswith("TPU"))]
    return min(same, key=lambda name: (len(_accelerator(name).rest ^ meant.rest), len(name)), default="")


def machine_cure(word: str, catalog: Catalog) -> str:
    """Return advice on how to correct a machine type that the catalog doesn't contain."""
    found = machine_types(word, catalog)
    return _meant(found) if found else f"use one such as {', '.join([*catalog.machines][:SUCH_AS])}"


def machine_types(word: str, catalog: Catalog) -> list[str]:
    """Return the machine types that the user's input might refer to.

    The input can be an approximate machine type name or an accelerator name.
    """
    machines = catalog.machines.values()
    families = sorted({one.family for one in machines}, key=len, reverse=True)
    meant, offered = _machine_type(word, families), {one.name: _machine_type(one.name, families) for one in machines}
    if meant.family:
        return _sized({name: one for name, one in offered.items() if one.family == meant.family}, meant)
    model = _accelerator(word).model
    if hosts := [one.name for one in machines if any(_is(model, kind) for kind in (*one.gpus, one.tpu))]:
        return hosts
    if GENERATION.fullmatch(model):
        return [one.name for one in machines if one.tpu]
    plain = [one.name for one in machines if not (one.needs_gpus or one.tpu)]
    return [name for name in plain if meant.size and offered[name][1:] == meant[1:]]


def strategy_cure(word: str, names: Collection[str]) -> str:
    """Return advice on how to correct a scheduling strategy that the API doesn't recognize."""
    return _by_alias(word, [name for name in names if name not in STRATEGIES], STRATEGIES)


def disk_cure(word: str, types: Collection[str]) -> str:
    """Return advice on how to correct an unsupported boot disk type."""
    return _by_alias(word, types, FACTS["disks"])


def region_cure(word: str, regions: Collection[str]) -> str:
    """Return advice on how to correct an unsupported region, such as a zone or another cloud's region."""
    continent, wind, number = _region(word)
    near = [name for name in regions if name.startswith(f"{continent}-{wind}")] if continent else []
    exact = [name for name in near if name == f"{continent}-{wind}{number}"]
    near = exact or [name for name in near if not wind or name.rstrip("0123456789") == f"{continent}-{wind}"] or near
    guess = [] if near else [one for one in [nearest(word, regions)] if one]
    return _meant(near or guess or [*regions])


def choice(names: list[str]) -> str:
    """Return advice that lists the names to choose from. If there are many names, list only the first few."""
    if len(names) > SHOWN:
        return f"use one such as {', '.join(names[:SUCH_AS])}"
    return f"use one of {', '.join(names)}" if len(names) > 1 else f"use {names[0]}"


def _accelerator(name: str) -> _Accelerator:
    text = name.casefold()
    for pattern, spelling in FACTS["spellings"]:
        text = re.sub(pattern, spelling, text)
    words = " ".join(re.findall("[a-z]+|[0-9]+", text))
    if not (found := MODEL.search(words)):
        return _Accelerator("", frozenset())
    rest = {*words[: found.start()].split(), *words[found.end() :].split()} - {"gb", "g"}
    return _Accelerator("".join(filter(None, found.groups())), frozenset(rest))


def _is(model: str, name: str) -> bool:
    """Return whether an accelerator's name contains this model. The models v5, v6, and v7 match all their variants."""
    theirs = _accelerator(name).model
    return bool(model) and (theirs == model or (model in ("v5", "v6", "v7") and theirs[:-1] == model))


def _machine_type(name: str, families: Iterable[str]) -> _MachineType:
    """Parse a machine type's name.

    The family and the kind can be joined, as in n1standard-8. In `families`, longer names must come first.
    """
    first, *others = re.split("[-_ .]+", name.casefold().rpartition("/")[2])
    family = next((one for one in families if re.match(rf"{re.escape(one)}(?:[a-z]{{3}}|$)", first)), "")
    if family == "cloud" and others != ["tpu"]:  # cloud-tpu has no kinds, and its generation may differ
        family = ""
    text = " ".join([first.removeprefix(family) if family or first.isalpha() else "", *others])
    size = re.search("[0-9]{1,9}", text)
    return _MachineType(family, "".join(re.findall("[a-z]{3,}", text)), int(size[0]) if size else 0)


def _sized(family: Mapping[str, _MachineType], meant: _MachineType) -> list[str]:
    """Return a family's machine types of the given kind and size.

    If the family doesn't offer this size, return machine types of similar sizes.
    """
    kinds = {one.kind for one in family.values()}
    alike = {kind for kind in kinds if meant.kind and (kind.startswith(meant.kind) or meant.kind.startswith(kind))}
    alike = alike or {nearest(meant.kind, kinds, CLOSE)} - {""} or kinds
    of_kind = {name: one.size for name, one in family.items() if one.kind in alike}
    exact = [name for name, size in of_kind.items() if size == meant.size]
    if exact or not meant.size:
        return exact or [*of_kind]
    below, above = ([s for s in of_kind.values() if (s < meant.size) is smaller] for smaller in (True, False))
    sizes = {max(below, default=0), min(above, default=0)}
    return [name for name, one in family.items() if one.size == meant.size or of_kind.get(name) in sizes]


def _by_alias(word: str, names: Collection[str], meanings: Mapping[str, str]) -> str:
    guess = nearest(word, [*names, *meanings], CLOSE)
    guess = meanings.get(guess, guess)
    return f"did you mean {guess}?" if guess in names else f"use one of {', '.join(names)}"


def _region(word: str) -> tuple[str, str, str]:
    """Return the continent, the direction, and the number in a region's name. Missing parts have the value ""."""
    lands = {*CONTINENTS, *CONTINENTS.values(), "us", "me"}
    land = "|".join(sorted(lands, key=len, reverse=True))
    text = letters(word).replace(" ", "")
    found = re.fullmatch(rf"(?P<land>{land})(?P<wind>{_WIND})(?P<number>[0-9]*)[a-f]?", text)
    found = found or re.fullmatch(rf"(?P<wind>{_WIND})(?P<land>{land})(?P<number>[0-9]*)", text)
    if not found:
        return "", "", ""
    winds = re.findall("|".join([*WINDS.values(), *WINDS]), found["wind"])
    return CONTINENTS.get(found["land"], found["land"]), "".join(WINDS[wind[0]] for wind in winds), found["number"]


def _meant(names: list[str]) -> str:
    return f"did you mean {names[0]}?" if len(names) == 1 else choice(names)

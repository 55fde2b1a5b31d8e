"""References such as $(AIP_MODEL_DIR) in a job's environment, command and arguments.

Source: Kubernetes, third_party/forked/golang/expansion; google-cloud-aiplatform 2.7.0, types/env_var.py.
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping

from google.cloud.aiplatform_v1.types.env_var import EnvVar

REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace each $(NAME) by its variable; $$ becomes $, and an unknown name stays as it is."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return REFERENCE.sub(value, text)


def expanded(env: Iterable[EnvVar], known: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job; a value may refer to earlier ones and to those in `known`."""
    variables: dict[str, str] = {}
    both = ChainMap({**known}, variables)
    for one in env:
        variables[one.name] = expand(one.value, both)
    return variables

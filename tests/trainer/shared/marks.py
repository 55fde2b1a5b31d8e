"""The mark of a test that would show the same with either framework: TensorFlow's run of it is a proof."""

from importlib.util import find_spec

import pytest

ONCE = pytest.mark.proof if find_spec("tensorflow") else pytest.mark.slow

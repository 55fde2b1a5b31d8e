"""Two runs may part as rounding grows; a fault parts them in the first steps, or at once."""

import math

import pytest

from tests.training import divergence

EXPECTED = dict.fromkeys(range(1, 151), 1.0)


def losses(difference: float, growth: float = 1.0, start: int = 1) -> list[tuple[int, float]]:
    """Losses that differ from `start` on, by more in each step."""
    return [(step, 1.0 + difference * growth**step * (step >= start)) for step in EXPECTED]


def test_rounding_may_grow_from_step_to_step() -> None:
    grown = losses(1e-7, growth=1.12)
    assert grown[69][1] - 1 > 2.7e-4  # of a right model with a high rate
    assert divergence(EXPECTED, grown) == ""


@pytest.mark.parametrize(
    ("faulty", "step"),
    [
        (losses(2e-5), 1),
        (losses(1e-6, growth=1.5), 6),
        (losses(0.01, start=100), 100),
        (losses(math.nan), 1),
    ],
)
def test_a_fault_is_named_by_its_first_step_with_what_to_suspect(faulty: list[tuple[int, float]], step: int) -> None:
    said = divergence(EXPECTED, faulty)
    assert said.startswith(f"step {step}: losses ")
    assert all(word in said for word in ("mean", "BatchNorm", "rounding", "--learning-rate"))

"""A run that loses a process again and again, at any step, ends as the unbroken one does."""

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.training import train

pytestmark = pytest.mark.proof
STEPS = ("--steps", "60", "--checkpoint-every", "5")
RUNS, KILLS = 2, 5  # kills of each run; 20 of each framework, as images and text have their runs
APART = 0 if find_spec("torch") else 1e-6  # an order of additions that differs from run to run rounds differently


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of the unbroken run, by step."""
    return dict(train(tmp_path_factory.mktemp("unbroken"), 2, *STEPS).losses_by_step)


@pytest.mark.parametrize("number", range(RUNS))
def test_a_run_that_is_killed_at_random_steps_loses_at_each_step_what_the_unbroken_one_does(
    tmp_path: Path, expected: dict[int, float], number: int
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    kills = [f"workerpool{dice.randrange(2)}-0:kill@step={step}" for step in sorted(dice.sample(range(1, 60), KILLS))]
    options = [word for kill in kills for word in ("--fault", kill)]

    broken = train(tmp_path, 2, *STEPS, options=("--restarts", *options))

    assert broken.code == 0, f"seed {seed}:\n{broken.output}"
    assert broken.output.count("is killed") == KILLS, f"seed {seed}:\n{broken.output}"
    assert dict(broken.losses_by_step).keys() == expected.keys()
    for step, loss in broken.losses_by_step:
        assert loss == pytest.approx(expected[step], rel=0, abs=APART), f"seed {seed}, step {step}"

"""A run that loses a process again and again, at any step, ends as the unbroken one does."""

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.training import train

pytestmark = pytest.mark.proof
STEPS = ("--steps", "60", "--checkpoint-every", "5")
KILLS = 20
APART = 0 if find_spec("torch") else 1e-6  # an order of additions that differs from run to run rounds differently


def test_a_run_that_is_killed_at_20_random_steps_loses_at_each_step_what_the_unbroken_one_does(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    kills = [f"workerpool{dice.randrange(2)}-0:kill@step={step}" for step in sorted(dice.sample(range(1, 60), KILLS))]
    options = [word for kill in kills for word in ("--fault", kill)]

    unbroken = train(tmp_path / "unbroken", 2, *STEPS)
    broken = train(tmp_path / "broken", 2, *STEPS, options=("--restarts", *options))

    assert broken.code == 0, f"seed {seed}:\n{broken.output}"
    assert broken.output.count("is killed") == KILLS, f"seed {seed}:\n{broken.output}"
    expected = dict(unbroken.losses_by_step)
    assert len(dict(broken.losses_by_step)) == 60
    for step, loss in broken.losses_by_step:
        assert loss == pytest.approx(expected[step], rel=0, abs=APART), f"seed {seed}, step {step}"

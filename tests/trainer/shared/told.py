"""A job that ends because a replica was told to, and its next start."""

import signal
from pathlib import Path

from tests.training import DEADLINE, Run, eventually, signal_trainer, started, train


def told_to_end_and_resumed(folder: Path, *flags: str) -> tuple[int, Run]:
    """Tell the worker of two replicas to end behind step 37 of 150; returns the step it saved, and the next run."""
    with started(folder, 2, *flags, "--checkpoint-every", "145") as (launcher, shown):
        assert eventually(lambda: "step 37/" in shown.read_text()), shown.read_text()
        assert signal_trainer(folder, "workerpool1-0", signal.SIGTERM)
        assert launcher.wait(DEADLINE) == 1
    output = shown.read_text()
    last = max(step for step in range(37, 151) if f"step {step}/150" in output)
    assert (
        f"workerpool1-0: saved step {last}, because this replica was asked to stop;"
        " after a restart, training resumes from this step" in output
    )
    assert f"workerpool0-0: saved step {last}, because workerpool1-0 was asked to stop" in output
    assert "Job failed: workerpool1-0 was killed by SIGTERM (exit code 143)" in output
    assert "workerpool0-0 exited with code 75" in output
    resumed = train(folder, 2, *flags, "--checkpoint-every", "145")
    assert f"resumed at step {last}" in resumed.output
    return last, resumed

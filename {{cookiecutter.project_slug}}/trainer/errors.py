"""The one exception whose text is meant for the person who started the job."""


class TrainerError(ValueError):
    """A fault that the user can cure; `task.py` prints its text without a traceback and ends with its exit code."""

    exit_code = 1

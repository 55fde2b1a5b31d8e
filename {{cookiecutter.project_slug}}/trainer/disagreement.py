"""The sentence about copies of the model that have parted: whose, in which tensor, and where the run goes on."""

from collections import Counter
from collections.abc import Mapping, Sequence

from trainer.job import Job
from trainer.vertex.errors import PeerError
from trainer.vertex.log import warn

CURE = (
    "if it names the same replica again, replace the machine, or look for code that changes the state outside of the"
    " optimizer; --anyway goes on as it is"
)


def require_alike(job: Job, step: int, saved: str, names: Sequence[str], copies: Sequence[Mapping[str, int]]) -> None:
    """Name the copies that are not like most of them; all, where no value is that of most.

    Args:
        saved: name of the newest checkpoint; empty if there is none.
        names: of the replica, or process, that holds each copy.
        copies: digest of each tensor, by its name, of each copy.

    Raises:
        PeerError: copies are not alike, unless the run is to go on anyway: then the chief warns.
    """
    tensor = next((name for name, value in copies[0].items() if any(copy[name] != value for copy in copies)), "")
    if not tensor:
        return
    ((usual, count),) = Counter(copy[tensor] for copy in copies).most_common(1)
    most = count * 2 > len(copies)
    odd = [*dict.fromkeys(name for name, copy in zip(names, copies, strict=True) if not most or copy[tensor] != usual)]
    differ = f"{'differs' if len(odd) == 1 else 'differ'} from {'the others' if most else 'one another'}"
    fault = f"after step {step} {' and '.join(odd)} {differ} in {tensor}"
    if not job.config.anyway:
        resume = f"resumes from {saved}" if saved else "begins at the first step"
        raise PeerError(f"{fault}; nothing is saved, and the next start {resume}: {CURE}")
    if job.cluster.rank == 0:
        warn(f"{fault}: going on, by --anyway")

"""Options and places, the same for all jobs that this machine runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running.faults import Fault
from vertex_launch.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the local Vertex for jobs; times in seconds."""

    capacity: int = 16  # replicas of the service at once; further jobs wait in the order of their creation
    region_capacity: Mapping[str, int] = field(default_factory=dict)  # the same for the jobs of one region
    provision: float = 0  # until a job's machines arrive
    stagger: float = 0.02  # between the starts of two replicas
    grace: float = 5  # between SIGTERM and SIGKILL
    reducers_as_ps: bool = True  # whether TF_CONFIG lists reducers; the documentation does not say
    restarts: bool = True  # whether anything starts again
    containers: str = ""  # the client that runs replicas as containers of their images; "" for processes
    retry_user_errors: bool = False  # whether a program's own error starts again, too
    faults: Sequence[Fault] = ()  # that each job has


@dataclass(frozen=True)
class Context:
    """The place where jobs run, for whom, and how."""

    state_dir: StateDir
    settings: Settings
    environ: Mapping[str, str]  # of the shell; little of it reaches a replica
    options: Options = field(default_factory=Options)
    wire: Mapping[str, str] = field(default_factory=dict)  # variables that lead a job's replicas to the local Vertex
    metadata: str = ""  # the address of a job's metadata server at its own port, "" where it cannot have this

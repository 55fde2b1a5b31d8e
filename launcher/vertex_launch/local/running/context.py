"""Defines the options and folders that all jobs on this machine share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running.faults import Fault
from vertex_launch.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options for jobs in the local Vertex. All times are in seconds."""

    capacity: int = 16  # the maximum number of replicas at a time; further jobs wait in the order of their creation
    region_capacity: Mapping[str, int] = field(default_factory=dict)  # the same limit for the jobs of one region
    provision: float = 0  # until a job's machines arrive
    stagger: float = 0.02  # between the starts of two replicas
    grace: float = 5  # between SIGTERM and SIGKILL
    reducers_as_ps: bool = True  # whether TF_CONFIG lists reducers, which isn't documented
    restarts: bool = True  # whether failed replicas and jobs are restarted
    containers: str = ""  # the client that runs replicas as containers of their images; "" for processes
    retry_user_errors: bool = False  # whether replicas are restarted after user errors, too
    faults: Sequence[Fault] = ()  # the simulated faults of each job


@dataclass(frozen=True)
class Context:
    """The state folder, settings, and options that all jobs share."""

    state_dir: StateDir
    settings: Settings
    environ: Mapping[str, str]  # the shell's variables, of which replicas get only a few
    options: Options = field(default_factory=Options)
    wire: Mapping[str, str] = field(default_factory=dict)  # variables that connect a job's replicas to the local Vertex
    metadata: str = ""  # the IP address of a job's metadata server, or "" if the server can't use its default port

"""The way of a job file to a job, here or on Vertex AI.

The API for Python is `replicas(JOB)`: what the service gives each replica of a job file. The rest is a command line.
"""

from typing import TYPE_CHECKING, Any

from vertex_launch import lazy_import

if TYPE_CHECKING:
    from vertex_launch.bridge import replicas
    from vertex_launch.contract import Replica

__all__ = ["Replica", "__version__", "replicas"]
__version__ = "0.2.0"

lazy_import.prepare("google.cloud.aiplatform_v1")
lazy_import.prepare("google.cloud.aiplatform_v1.types")


def __getattr__(name: str) -> Any:
    """Import the API only where it is used: the command line begins without Google's messages. Source: PEP 562."""
    if name not in ("Replica", "replicas"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vertex_launch import bridge

    return getattr(bridge, name)

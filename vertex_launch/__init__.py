"""What runs on the laptop: from a job file to a job, here or on Vertex AI."""

from vertex_launch import lazy_import

__version__ = "0.2.0"

lazy_import.prepare("google.cloud.aiplatform_v1")
lazy_import.prepare("google.cloud.aiplatform_v1.types")

"""What runs on the laptop: from a job file to a job, here or on Vertex AI."""

from launch import lazily

lazily.prepare("google.cloud.aiplatform_v1")

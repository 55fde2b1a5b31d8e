"""Vertex AI beyond this machine: jobs are sent, looked at, followed and stopped."""

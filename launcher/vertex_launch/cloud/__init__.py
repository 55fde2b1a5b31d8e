"""Submits, inspects, follows, and stops jobs on Vertex AI."""

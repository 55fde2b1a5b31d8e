"""Vertex AI's API, and the parts that all APIs share: the router, errors, filters and the resource store."""

"""Vertex AI's API, and the code that all local APIs share: the router, errors, filters and the resource store."""

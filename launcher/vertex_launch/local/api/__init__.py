"""Vertex AI's API, and the code shared by all local APIs: the router, errors, filters, and the resource store."""

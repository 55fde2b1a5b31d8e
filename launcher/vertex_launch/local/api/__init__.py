"""Vertex AI's API and what both APIs share: the router, errors, filters and the store of resources."""

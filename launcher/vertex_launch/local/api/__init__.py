"""The local Vertex AI API, and the code that all local APIs share: the router, errors, filters, and resource store."""

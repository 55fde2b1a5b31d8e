"""The registries of the local Vertex: datasets, models, and experiments."""

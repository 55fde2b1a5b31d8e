"""Distributes the model across the devices of a run."""

"""Describes, without training, what a run will need."""

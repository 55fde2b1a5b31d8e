"""Describes the resources that a run will need, without training."""

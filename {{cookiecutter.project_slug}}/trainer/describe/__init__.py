"""Estimates a run's resource requirements, without training."""

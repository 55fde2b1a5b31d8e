"""Scores a run's checkpoints in a replica of pool 3 while training continues."""

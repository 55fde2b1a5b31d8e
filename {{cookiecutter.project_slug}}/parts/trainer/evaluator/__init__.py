"""Scores the checkpoints of a training while it runs, in pool 3."""

"""Scores a training's checkpoints in pool 3 while the training runs."""

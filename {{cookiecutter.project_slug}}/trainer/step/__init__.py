"""The state and the sums of a training step."""

"""Defines the training state, and sums losses and metrics over the samples of a step."""

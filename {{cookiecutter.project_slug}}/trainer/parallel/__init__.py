"""Spreads the model over the devices of a run."""

"""A step's state and sums."""

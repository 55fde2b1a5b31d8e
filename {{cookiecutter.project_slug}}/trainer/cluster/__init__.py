"""Determines which replicas train, starts the training processes, and joins them into one group."""

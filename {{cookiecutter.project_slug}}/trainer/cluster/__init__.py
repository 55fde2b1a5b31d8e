"""Finds the replicas that train, and starts and joins their processes."""

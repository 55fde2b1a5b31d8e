"""Reads samples from shards in one global order, and fingerprints both."""

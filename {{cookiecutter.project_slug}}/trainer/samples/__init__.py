"""Reads samples from shards in one global order, and fingerprints the samples and their order."""

"""Samples in one global order, their shards and the fingerprint of both."""

"""The Cloud Storage API, implemented with plain folders as buckets."""

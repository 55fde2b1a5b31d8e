"""Cloud Storage's API, implemented with plain folders as buckets."""

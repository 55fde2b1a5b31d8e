"""Cloud Storage's API, with plain folders as buckets."""

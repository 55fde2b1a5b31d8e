"""Cloud Storage's API, which uses plain folders as buckets."""

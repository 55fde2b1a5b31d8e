"""Cloud Storage's API over plain folders."""

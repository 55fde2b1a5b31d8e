"""Write, scan and sink tables in a bucket with polars, which uses Rust's object_store."""

import os

import polars

ROWS = 400_000  # of which the file is sent in several parts

table = polars.DataFrame({"id": range(1000), "group": [number % 3 for number in range(1000)]})
table.write_parquet("gs://b/polars/one.parquet")
assert polars.read_parquet("gs://b/polars/one.parquet").equals(table)
table.write_parquet("gs://b/polars/groups/", partition_by="group")
groups = polars.scan_parquet("gs://b/polars/groups/**/*.parquet", hive_partitioning=True).group_by("group").len()
assert sorted(groups.collect().rows()) == [(0, 334), (1, 333), (2, 333)]
large = polars.DataFrame({f"column{index}": [index + row / 7 for row in range(ROWS)] for index in range(8)})
large.lazy().sink_parquet("gs://b/polars/large.parquet", compression="uncompressed")
assert polars.read_parquet("gs://b/polars/large.parquet").equals(large)
assert os.path.getsize("/gcs/b/polars/large.parquet") > 8 * 8 * ROWS

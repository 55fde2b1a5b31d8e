"""Write an array to a bucket with tensorstore, and read a part of it."""

import pathlib

import tensorstore

pathlib.Path("/gcs/arrays").mkdir()  # tensorstore takes no bucket whose name has fewer than three letters
spec = {"driver": "zarr", "kvstore": "gs://arrays/weights/", "create": True}
metadata = {"shape": [100, 100], "dtype": "<f4", "chunks": [50, 50]}
array = tensorstore.open({**spec, "metadata": metadata}).result()
array[:] = 3.0
assert tensorstore.open({"driver": "zarr", "kvstore": "gs://arrays/weights/"}).result()[7, 9].read().result() == 3.0
keys = tensorstore.KvStore.open("gs://arrays/weights/").result().list().result()
assert sorted(keys) == [b".zarray", b"0.0", b"0.1", b"1.0", b"1.1"]

#!/usr/bin/env bash
# Expected: If an exception leaves "with fs.open(...)", gcsfs drops the upload. Cloud Storage keeps the old object.
# Happens: gcsfs completes the upload, so half a file replaces the old object. google-cloud-storage keeps the old one.
# Versions: gcsfs 2026.10.1, google-cloud-storage 3.17.1, gcp-storage-emulator 2026.7.19
# Date: 2026-11-28
# Matters: An error or Ctrl-C during a save replaces the last good checkpoint with an object that looks complete.
set -euo pipefail
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server" && wait "$server"; } || true; rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile gcsfs==2026.10.1 google-cloud-storage==3.17.1 \
  gcp-storage-emulator==2026.7.19

cat >"$folder/writes.py" <<'EOF'
import os
import sys
from importlib.metadata import version

import gcsfs
from google.cloud import storage

OLD, NEW = b"old" * 1000, b"new" * 1000


def save(open_object, fails):
    """Write an object of two parts; where it fails, an exception comes between the parts."""
    with open_object() as file:
        file.write(NEW if fails else OLD)
        if fails:
            raise InterruptedError
        file.write(OLD)


def after_interruption(open_object, read):
    """Which object is there after a complete save and an interrupted one."""
    save(open_object, fails=False)
    try:
        save(open_object, fails=True)
    except InterruptedError:
        pass
    content = read()
    return "the old object" if content == OLD * 2 else "half of the new object" if content == NEW else "neither"


print("gcsfs", version("gcsfs"), "google-cloud-storage", version("google-cloud-storage"))
files = gcsfs.GCSFileSystem(project="a-project", token="anon", endpoint_url=os.environ["STORAGE_EMULATOR_HOST"])
by_gcsfs = after_interruption(lambda: files.open("a-bucket/x", "wb"), lambda: files.cat("a-bucket/x"))
blob = storage.Client(project="a-project").bucket("a-bucket").blob("y")
by_storage = after_interruption(lambda: blob.open("wb"), blob.download_as_bytes)
print("after an interrupted save by gcsfs:", by_gcsfs)
print("after an interrupted save by google-cloud-storage:", by_storage)
if (by_gcsfs, by_storage) != ("half of the new object", "the old object"):
    sys.exit("Changed: an interrupted save leaves another object.")
EOF
free_port='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
port=$(timeout 60 python3 -c "$free_port")
export STORAGE_EMULATOR_HOST=http://127.0.0.1:$port GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false
STORAGE_BASE="$folder" STORAGE_DIR=objects timeout -k 5 300 "$folder/venv/bin/gcp-storage-emulator" start \
  --host=127.0.0.1 --port="$port" --default-bucket=a-bucket >"$folder/log" 2>&1 &
server=$!
timeout 120 bash -c "until (: </dev/tcp/127.0.0.1/$port) 2>/dev/null; do sleep 0.2; done"
timeout -k 5 300 "$folder/venv/bin/python" -W ignore "$folder/writes.py"

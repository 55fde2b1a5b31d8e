#!/usr/bin/env bash
# Expected: In "<<: [*a, *b]" the first mapping wins for all keys, as the merge key's definition says.
# Happens: PyYAML 6.0.4 lets the last one win for keys of two and more letters, and the first for keys of one letter.
# Versions: PyYAML 6.0.4 (upstream: yaml/pyyaml#953); 6.0.3 lets the first win
# Date: 2026-11-28
# Matters: After a patch release, a job file that merges anchors requests a different number of machines.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"

cat >"$folder/merge.py" <<'EOF'
import json
import sys

import yaml

JOB = """
large: &large {n: 5, replicaCount: 5}
small: &small {n: 1, replicaCount: 1}
pool: {<<: [*large, *small]}
"""
pool = yaml.safe_load(JOB)["pool"]
print("PyYAML", yaml.__version__, "merges [n: 5, replicaCount: 5] and [n: 1, replicaCount: 1] into", pool)
if pool != json.loads(sys.argv[1]):
    sys.exit(f"Changed: PyYAML {yaml.__version__} merges mappings in another order.")
EOF
timeout -k 5 300 "$folder/venv/bin/pip" install -qq --no-compile PyYAML==6.0.3
timeout -k 5 300 "$folder/venv/bin/python" "$folder/merge.py" '{"n": 5, "replicaCount": 5}'
timeout -k 5 300 "$folder/venv/bin/pip" install -qq --no-compile PyYAML==6.0.4
timeout -k 5 300 "$folder/venv/bin/python" "$folder/merge.py" '{"n": 5, "replicaCount": 1}'

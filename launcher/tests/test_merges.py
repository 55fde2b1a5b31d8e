"""`<<` in a job file merges mappings as YAML 1.1 defines it, with any release of PyYAML.

Source: yaml.org/type/merge.html, 2005. PyYAML 6.0.4 of November 2026 reversed the order of a list (yaml/pyyaml#953).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, SOURCE
from tests.conftest import kept_folder
from vertex_launch.job import strict_yaml

RELEASES = ("6.0.3", "6.0.4")
READ = """
import json, sys, yaml
from vertex_launch.job import strict_yaml
values = [strict_yaml.from_yaml(text)["merged"] for text in json.load(sys.stdin)]
print(json.dumps([yaml.__version__, values]))
"""
BASE = """
first: &first {count: '1', x: '1', inner: {a: '1'}}
second: &second {count: '2', x: '2', other: '2'}
merged:
  """
MERGED = {  # what stands under `merged` -> what it means
    "<<: *first": {"count": "1", "x": "1", "inner": {"a": "1"}},
    "<<: [*first, *second]": {"count": "1", "x": "1", "other": "2", "inner": {"a": "1"}},
    "<<: [*second, *first]": {"count": "2", "x": "2", "inner": {"a": "1"}, "other": "2"},
    "<<: [*first, *second]\n  count: '9'": {"count": "9", "x": "1", "other": "2", "inner": {"a": "1"}},
    "count: '9'\n  <<: [*first, *second]": {"count": "9", "x": "1", "other": "2", "inner": {"a": "1"}},
    "<<: [{count: '5'}, *first]\n  inner: {b: '2'}": {"count": "5", "x": "1", "inner": {"b": "2"}},
    "<<: {<<: [*second, *first], x: '7'}": {"count": "2", "x": "7", "inner": {"a": "1"}, "other": "2"},
    "<<: [{<<: *second}, {<<: *first}]": {"count": "2", "x": "2", "inner": {"a": "1"}, "other": "2"},
    "<<: [{<<: [*first, *second], other: '8'}, *second]": {"count": "1", "x": "1", "other": "8", "inner": {"a": "1"}},
    "<<: [*first, *first]": {"count": "1", "x": "1", "inner": {"a": "1"}},
    "<<: [{}, *second, {}]": {"count": "2", "x": "2", "other": "2"},
    "<<: []": {},
    "'<<': *second": {"<<": {"count": "2", "x": "2", "other": "2"}},  # a quoted key is a key
}


@pytest.mark.parametrize("text", MERGED)
def test_the_first_merged_mapping_wins_and_a_mapping_s_own_keys_win_over_all(text: str) -> None:
    assert strict_yaml.from_yaml(BASE + text)["merged"] == MERGED[text]


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_of_pyyaml_merges_in_the_same_order(release: str, tmp_path: Path) -> None:
    folder = kept_folder(f"PyYAML-{release}", tmp_path)
    if not (folder / "yaml").exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder)
        subprocess.run([*pip, f"PyYAML=={release}"], check=True, timeout=DEADLINE)
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{SOURCE}"}
    texts, command = json.dumps([BASE + text for text in MERGED]), [sys.executable, "-c", READ]
    done = subprocess.run(command, env=environ, input=texts, capture_output=True, text=True, timeout=DEADLINE)
    assert json.loads(done.stdout) == [release, [*MERGED.values()]]

"""Print a table of all cases: what each command ends with, and which of the expected lines it prints."""

import sys
import tempfile
from pathlib import Path

from tests.public.test_public import cases, outcome


def main(chosen: list[str]) -> None:
    print("| case | command | exit | printed |\n|---|---|---|---|")
    for case in cases():
        if chosen and not any(case.folder.startswith(word) for word in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder:
            done = outcome(case, Path(folder))
        lines = [line.strip() for line in done.stdout.splitlines() if any(text in line for text in case.prints)]
        printed = "<br>".join(dict.fromkeys(lines)).replace("|", "\\|")
        verdict = f"WRONG: {printed}" if case.faults(done) else printed
        print(f"| {case.folder} | `{case.command}` | {done.returncode} | {verdict} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

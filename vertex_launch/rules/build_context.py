"""Files of a project that its image gets: those that COPY and ADD of its Dockerfile name, and .dockerignore does not.

Source: Docker, "Dockerfile reference" and "Build context", 2026.
"""

import posixpath
import re

COPIES = re.compile(r"^[ \t]*(?:COPY|ADD)\s+(?!.*--from=)(?:--\S+\s+)*(.+)$", re.MULTILINE | re.IGNORECASE)
WILD = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def sources(dockerfile: str) -> list[str]:
    """Return the files, folders and patterns that the Dockerfile copies."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^[ \t]*#.*\n", "", dockerfile, flags=re.MULTILINE))
    found: list[str] = []
    for names in COPIES.findall(lines):
        *copied, _ = re.findall(r'"([^"]*)"', names) if names.startswith("[") else names.split()
        found += copied
    return found


def is_copied(file: str, dockerfile: str) -> bool:
    """Whether the Dockerfile copies the file, or a folder above it."""
    return any(_covers(source, file) for source in sources(dockerfile))


def is_ignored(file: str, dockerignore: str) -> bool:
    """Whether .dockerignore keeps the file out; its last line that names the file decides."""
    lines = [line.strip() for line in dockerignore.splitlines() if not line.startswith("#")]
    deciding = [line for line in lines if line and _covers(line.removeprefix("!"), file)]
    return bool(deciding) and not deciding[-1].startswith("!")


def _covers(pattern: str, file: str) -> bool:
    """Whether a pattern means a file, or a folder above it; a variable may be anything."""
    normal = posixpath.normpath(pattern).lstrip("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\$\{[^}]*\}|\$\w+)", normal)
    found = "".join(WILD.get(part, ".*") if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return normal in (".", "") or bool(re.fullmatch(f"{found}(/.*)?", file))

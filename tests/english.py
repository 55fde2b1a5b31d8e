"""Find long sentences, and words that CONTRIBUTING.md, "English", replaces: python -m tests.english.

The sentences are those of pages, docstrings and messages. Code blocks and generated pages are left out.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "{{cookiecutter.project_slug}}"
PAGES = ("*.md", "docs/*.md", "launcher/*.md", "launcher/docs/*.md", f"{PROJECT.name}/README.md")
GENERATED = ("rules.md", "fidelity.md")  # their sentences come from code
PROGRAMS = (ROOT / "launcher/vertex_launch", PROJECT, ROOT / "hooks")

LONGEST = 30  # words of a sentence; the goal is 25, and a sentence with code or a list may need more
MESSAGE = 7  # words; a shorter string is seldom a sentence
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z`])")
WORDS = {
    r"(?<!there )(are|is) none|(?<![tT]here )is no (?!longer)[a-z]+|names none|which none": "negate the verb: isn't",
    r"told to end|tells?|told(?![:`])": "say who prints, reports or asks",
    r"whoever|nobody|somebody": "name the process, replica or person",
    r"behind (--|a )": "use after",
    r"mend(s|ed)?": "use fix",
    r"(stands?|lies?) (in|below|behind|beside)": "use is in, is under, represents",
    r"no number|numbers that are none": "use NaN or infinite",
    r"newest whole": "use latest complete",
    r"at leisure|as it is the|gcloud line|writes a mail|for ever|hang up|of yours|beside it": "use plain words",
    r"where (it|the|no|a|there) [a-z]+ (is|are|has|names)": "use if or when",
    r"Raises [\w, ]+ (where|when)": "use Raises NAME if",
}
# Sentences that keep a word or their length, by their first words, with the reason.
EXCEPTIONS = {
    "mend, cure": "the glossary",
    "no number": "the glossary",
    "the newest whole checkpoint": "the glossary",
    "is no alias": "the glossary",
    "`the model of workerpool1-0": "quotes three messages",
    "(\\[rank": "a regular expression",
}


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text. An argument, an item of a list and an indented line begin a new sentence."""
    for block in re.split(r"\n\s*\n|\n\s+(?=\w+: )|\n\s*(?=[*-] )", text):
        yield from SENTENCE_END.split(" ".join(block.split()))


def of_page(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown page: paragraphs, items of lists and cells of tables."""
    prose = re.sub(
        r"```.*?```|\{% else %\}.*?\{% endif %\}|<!--.*?-->|\{%.*?%\}|^\[.+?\]: .*$",
        "",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    for block in re.split(r"\n\s*\n|\n(?=[|*#-]|\d\. )", prose):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            yield from sentences(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).strip(" *"))


def of_program(text: str) -> Iterator[str]:
    """Yield the sentences of a Python file's docstrings and messages."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= MESSAGE:
            yield from sentences(node.value)


def faults(sentence: str) -> Iterator[str]:
    """Yield what is wrong with a sentence."""
    if sentence.startswith(tuple(EXCEPTIONS)):
        return
    if len(sentence.split()) > LONGEST:
        yield f"has {len(sentence.split())} words; split it"
    for pattern, action in WORDS.items():
        if found := re.search(rf"\b(?:{pattern})\b", sentence):
            yield f'"{found[0]}": {action}'


def checked() -> Iterator[tuple[Path, str]]:
    """Yield each sentence with its file."""
    for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern) if path.name not in GENERATED):
        yield from ((page, sentence) for sentence in of_page(page.read_text(encoding="utf-8")))
    for program in sorted(
        path for folder in PROGRAMS for path in folder.rglob("*.py") if "tests" not in path.parts[-2]
    ):
        yield from ((program, sentence) for sentence in of_program(program.read_text(encoding="utf-8")))


def main() -> int:
    """Print each fault with its file; return the exit code."""
    found = [(path, sentence, fault) for path, sentence in checked() for fault in faults(sentence)]
    for path, sentence, fault in found:
        print(f"{path.relative_to(ROOT)}: {fault}: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The rule that a shell script must exit with its trainer's exit code."""

import re

from tree_sitter import Node

from vertex_launch.rules import shells
from vertex_launch.rules.containers import words
from vertex_launch.rules.rule import Finding, Findings, Job, RuleContext, rule
from vertex_launch.rules.shells import Script, source

PROGRAM = re.compile(rf"(?:{shells.STARTED.pattern}|\S*\.(?:sh|py)|\./\S+|make|Rscript|julia)(?= |$)")
HELPER = re.compile(r"\S+ (?:-\w*c |-m (?:pip|venv|nltk|spacy)\b|\S*setup\.py|--version|-V\b)")
TRAINS = re.compile(r"train|fine_?-?tun|\b(?:fit|main|task)\b", re.IGNORECASE)
PRINTED = re.compile(r"\b(?:echo|printf)\b[^;&|>\n]*(?=[;&|\n]|$)")
KEPT = re.compile(r"(\w+)=[\"']?\$\{?(?:\?|PIPESTATUS)")  # stores an exit code in a variable
LOOKS = r"\$\{?(?:\?|PIPESTATUS)|\btrap\b.*\b(?:exit|kill|ERR)\b|\bwait\s+[^\s;&#]"  # checks exit codes
ERREXIT = re.compile(r"(?:^|\s)([-+])(?:\w*e\w*|o errexit)(?=\s|$)")
UNCLEAR = ("negated_command", "function_definition", "command_substitution", "process_substitution", "while_statement")
BODIES = ("program", "compound_statement", "subshell", "do_group", "if_statement", "else_clause", "case_item")

PIPE = "the pipe"
CURES = {
    PIPE: "begin the script with set -o pipefail",
    "||": "remove ||, or end the command after || with exit 1",
    "&": "remove &, or end the script with wait $!",
    "if": "add else exit 1",
}
BASHES = ("bash", "zsh", "ksh")  # the shells that have pipefail


@rule("exit-hidden", "warning", "inferred", "shell")
def failure_shown(job: Job, context: RuleContext) -> Findings:
    """A script that a shell runs with -c should exit with its trainer's exit code.
    Otherwise: If the trainer fails, Vertex AI reports that the job succeeded instead of restarting it."""
    texts = {text.text: text for pool in reversed(job.pools) if (text := shells.inline(words(pool, context)))}
    for text in reversed(texts.values()):
        script = None if text.is_python else shells.read(text.text, {})
        if script and (found := hidden(script, text)):
            yield Finding(text.place, *found)


def _trainer(script: Script) -> tuple[Node | None, str]:
    """Return the command that trains.

    If any commands contain a word such as "train", return the last of them. Otherwise, return the last command that
    might train.
    """
    runs = [(node, " ".join(said), " ".join(said[shells.start(said) :])) for node, said in script.commands]
    may = [(node, line) for node, line, program in runs if PROGRAM.match(program) and not HELPER.match(program)]
    return [(None, ""), *may, *(one for one in may if TRAINS.search(one[1]))][-1]


def hidden(script: Script, text: shells.Inline) -> tuple[str, str] | None:
    """Return what hides the trainer's failure, and the solution. Return None if the script might report the failure."""
    silent = PRINTED.sub("", text.text)
    looks = "|".join([LOOKS, *(rf"\$\{{?{name}\b" for name in KEPT.findall(silent))])
    node, line = (None, "") if re.search(looks, KEPT.sub("", silent)) else _trainer(script)
    sets = (said for one, said in script.commands if node and one.start_byte < node.start_byte and said[0] == "set")
    options = " ".join([text.options, *(word for said in sets for word in said)])
    stops = ERREXIT.findall(options)[-1:] == ["-"]
    while node and (parent := node.parent) and parent.type not in UNCLEAR:
        follows = parent.children[parent.children.index(node) + 1 :]
        later = [one for one in follows if one.is_named and not one.type.endswith(("clause", "comment"))]
        tested = parent.type == "if_statement" and node == parent.child_by_field_name("condition")
        operator = follows[0].type if follows else ""
        ends = parent.type in BODIES and operator != "&" and (stops or line.startswith("exec "))
        if _fails(script, *([parent] if tested else later)) or (ends and later):
            return None
        safe = ends or (parent.type == "pipeline" and "pipefail" in options)
        if cause := "if" if tested else "" if safe else _cause(parent, later, operator):
            cure = CURES.get(cause, f"write {line} || exit 1")
            bash = "run the script with bash, and " if cause == PIPE and text.program not in BASHES else ""
            return f"{cause} hides the exit code of {line}", f"{bash}{cure}"
        node, stops = parent, stops and not (later and parent.type == "list")  # set -e ignores the left side of &&
    return None


def _cause(parent: Node, later: list[Node], operator: str) -> str:
    """Return the operator or command that hides the previous exit code, or "" if there is none."""
    if parent.type == "pipeline" and later:
        return PIPE
    if operator == "||" or (parent.type in BODIES and operator == "&"):
        return operator
    if parent.type not in BODIES:
        return ""
    return source(later[-1]) if later else "the loop's next iteration" * (parent.type == "do_group")


def _fails(script: Script, *parts: Node) -> bool:
    """Return whether these parts of a script contain a command that fails or exits with an error code."""
    spans = [range(one.start_byte, one.end_byte) for one in parts]
    inside = (said for node, said in script.commands if any(node.start_byte in span for span in spans))
    return any(said[0] in ("exit", "return", "false", "kill") and said[1:] != ("0",) for said in inside)

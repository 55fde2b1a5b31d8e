"""Prints the Markdown page that lists all rules, when run as `python -m vertex_launch.rules`."""

from vertex_launch.facts import catalog
from vertex_launch.rules import explain

if __name__ == "__main__":
    print(explain.page(catalog.standard()), end="")

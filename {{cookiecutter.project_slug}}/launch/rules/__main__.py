"""python -m launch.rules: the page of all rules, in Markdown."""

from launch import catalog
from launch.rules import story

if __name__ == "__main__":
    print(story.page(catalog.standard()), end="")

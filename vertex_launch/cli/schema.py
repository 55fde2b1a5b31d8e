"""The command `schema`."""

import typer

from vertex_launch import json_schema

app = typer.Typer(add_completion=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of job files; editors check and complete files with it."""
    typer.echo(json_schema.text(), nl=False)

"""Implements Vertex AI's contract with a container: folders, outputs, log lines, exit codes, and reducers."""

"""Implements the contract between Vertex AI and a container: folders, outputs, log lines, exit codes, and reducers."""

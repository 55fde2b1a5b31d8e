"""Implements the service's contract: folders, outputs, log lines, exit codes, and reducers."""

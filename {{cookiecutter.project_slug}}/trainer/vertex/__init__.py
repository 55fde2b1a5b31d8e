"""Keeps the contract of the service: folders, outputs, log lines, exit codes, reducers."""

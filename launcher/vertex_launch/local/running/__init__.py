"""Turns a job into processes of this machine."""

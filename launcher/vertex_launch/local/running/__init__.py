"""Runs a job's replicas as processes on this machine."""

"""Runs the replicas of a job as processes on this machine."""

"""Saves the state of a run atomically, and resumes from it."""

"""Saves the state of a run whole or not at all, and resumes from it."""

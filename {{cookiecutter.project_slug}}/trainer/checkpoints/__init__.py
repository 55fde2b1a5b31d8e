"""Saves a run's state atomically, and resumes a run from its saved state."""

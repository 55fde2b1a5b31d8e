"""Input that others wrote: JSON, files, and text that a terminal shows."""

"""Safe handling of untrusted input: JSON, files, and text that a terminal shows."""

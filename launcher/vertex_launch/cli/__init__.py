"""The commands: each reads flags and settings, calls the rest, and prints."""

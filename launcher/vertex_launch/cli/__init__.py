"""The vertex-launch commands. Each command reads flags and settings, calls other modules, and prints results."""

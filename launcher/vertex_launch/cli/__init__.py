"""The commands of vertex-launch. Each command reads flags and settings, calls other modules, and prints results."""

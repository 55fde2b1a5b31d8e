"""The commands of the program: each command reads flags and settings, calls other modules, and prints results."""

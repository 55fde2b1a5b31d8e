"""Jobs: parse a job from a file or a request, and derive its replicas with their commands and environments."""

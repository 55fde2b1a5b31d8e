"""A file or a request becomes a job, or findings; a job becomes its replicas, with commands and environments."""

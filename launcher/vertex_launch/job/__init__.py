"""Parser for jobs in files and requests, and the commands and environment variables of a job's replicas."""

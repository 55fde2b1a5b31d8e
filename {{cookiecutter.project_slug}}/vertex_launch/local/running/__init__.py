"""From a job to processes of this machine."""

"""The local Vertex, which runs a job's replicas as processes on this machine, with the same contract as Vertex AI."""

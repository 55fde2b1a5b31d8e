"""The local Vertex, which runs a job's replicas as processes on this machine, under the same contract as Vertex AI."""

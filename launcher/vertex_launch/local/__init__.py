"""The local Vertex: runs a job's replicas as processes of this machine, under the service's contract."""

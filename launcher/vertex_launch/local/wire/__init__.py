"""The way of a job's replicas to Google: it ends at the local Vertex, with the clients' own names, tokens and TLS."""

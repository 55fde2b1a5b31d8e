"""The proxy that redirects a replica's Google clients to the local Vertex without changing the clients."""

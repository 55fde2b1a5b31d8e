"""The proxy that redirects a replica's Google clients to the local Vertex, with unchanged hosts, tokens and TLS."""

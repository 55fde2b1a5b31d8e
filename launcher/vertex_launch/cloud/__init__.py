"""Access to Vertex AI in the cloud: submit, inspect, follow and stop jobs."""

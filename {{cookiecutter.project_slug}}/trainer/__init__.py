"""What runs in the container: from CLUSTER_SPEC and flags to a trained, exported model."""

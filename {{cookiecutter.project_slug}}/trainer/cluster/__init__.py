"""Determines which replicas train, starts the training processes, and joins the processes into one group."""

"""Finds who trains, and starts and joins the processes."""

"""Parses jobs from files and requests, and determines the commands and environment variables of their replicas."""

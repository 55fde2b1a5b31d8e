"""Dated and sourced facts about Vertex AI: machines, regions, prices, images, and common alternative names."""

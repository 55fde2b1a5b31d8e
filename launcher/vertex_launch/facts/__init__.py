"""Facts about Vertex AI with dates and sources: machines, regions, prices, images, and common alternative names."""

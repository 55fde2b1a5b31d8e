"""Plans jobs before they are sent: their needs, cost and gain."""

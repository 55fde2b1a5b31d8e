"""Plans jobs before they are submitted: their machines, their cost, and their speed."""

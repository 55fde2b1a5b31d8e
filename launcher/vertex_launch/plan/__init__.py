"""Plans the machines, cost, and speed of a job before it's submitted."""

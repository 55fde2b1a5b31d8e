"""Plans the machines, the cost and the speed of a job before the job is submitted."""

"""What a job will need, cost and gain, before it is sent."""

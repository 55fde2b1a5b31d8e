"""What people see of the jobs."""

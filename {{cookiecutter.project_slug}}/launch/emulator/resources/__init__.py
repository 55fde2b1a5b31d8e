"""What the API keeps and does: jobs, trials, pipelines, datasets, models, and their lists and errors."""

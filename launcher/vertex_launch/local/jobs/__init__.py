"""The API resources that run: custom jobs, hyperparameter tuning jobs, and training pipelines."""

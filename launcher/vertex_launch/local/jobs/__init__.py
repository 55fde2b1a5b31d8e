"""The runnable API resources: custom jobs, hyperparameter tuning jobs, and training pipelines."""

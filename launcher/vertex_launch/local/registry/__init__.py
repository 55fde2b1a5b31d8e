"""Resources that are kept: data sets, models and experiments."""

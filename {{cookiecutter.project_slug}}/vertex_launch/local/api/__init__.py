"""The service's door: routes, errors, filters and the store of resources."""

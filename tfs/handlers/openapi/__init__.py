"""The REST API of the models that are served, described in OpenAPI 3.1."""

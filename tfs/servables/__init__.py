"""Platforms: from a version directory to a servable. See ``platform`` and ``registry``."""

"""Tests of sources, adapters and routers."""

"""Tests of what deploy/ ships, without a container or systemd."""

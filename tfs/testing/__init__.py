"""Doubles for tests of TFS and of what builds on it; production never imports them."""

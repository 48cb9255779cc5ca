"""Tests of TFS; the folders mirror the packages."""

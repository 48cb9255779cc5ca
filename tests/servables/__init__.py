"""Tests of tfs.servables."""

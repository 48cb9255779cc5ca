"""Tests of the protocol of express, without sockets."""

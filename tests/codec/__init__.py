"""Tests of the codec, most of them against protobuf's own parser."""

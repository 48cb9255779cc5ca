"""Requests to replies, given a way to look models up. No transport."""

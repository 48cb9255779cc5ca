"""Devices that models compute on, and their faults."""

"""Devices that models compute on: their memory, how workers share it, and their faults."""

"""Devices that models compute on: their memory, what workers share of it, their faults."""

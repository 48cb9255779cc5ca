"""Computes a model stage by stage, and lets requests join a batch between two stages.

``rules.py`` decides who joins, from the table of ``stage_times.py`` alone; ``simulation.py``
says what a rule would have made of some arrivals, and ``auto.py`` chooses by it.
``cutter.py`` makes stages of a model, and ``stages.py`` computes them.
"""

"""The ``tfs`` command. Heavy imports happen inside the commands."""

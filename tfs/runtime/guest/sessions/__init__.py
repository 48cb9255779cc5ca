"""The inside of sessions: packages that are opened, objects that are held and called.

``session_guest`` serves the requests and moves objects to other interpreters. Values cross
by ``value_codec``.
"""

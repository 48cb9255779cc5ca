"""The inside of sessions: packages that are opened, objects that are held and called.

``session_guest`` serves the requests. Values cross by ``value_codec``, and objects that
move to another interpreter by ``movable_pickle``.
"""

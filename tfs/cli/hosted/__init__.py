"""``tfs hosted``: fleets of servers."""

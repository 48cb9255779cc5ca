"""Where versions come from: sources, routers and adapters. Plain Python."""

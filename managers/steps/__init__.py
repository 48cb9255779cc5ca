"""The parts of one step of a manager: news, decisions, and their order."""

"""The lifecycle: harnesses, policies, managers, the serving map. Plain Python."""

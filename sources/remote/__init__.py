"""Base paths behind URLs: how they are read, and the copies of their versions here."""

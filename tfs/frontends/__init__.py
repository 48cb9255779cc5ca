"""Front ends: what turns the outside world's requests into calls on handlers."""

"""The user's Lightning program: its batch size, learning rate and monitored metric."""

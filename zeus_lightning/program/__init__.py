"""The user's Lightning program: its job, batch size, learning rates, dataloaders and metric."""

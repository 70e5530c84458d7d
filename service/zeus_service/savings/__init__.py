"""What a job has saved against its default batch size: pure functions over its trials."""

"""What a job has saved compared with its default batch size: pure functions over its trials."""

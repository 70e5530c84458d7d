"""What a job has saved against its default batch size."""

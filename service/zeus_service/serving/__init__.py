"""How the service runs under gunicorn, and what it logs."""

"""The HTTP side: routes, and nothing that decides."""

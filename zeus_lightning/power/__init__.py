"""The best GPU power limit: how it is searched for, measured and chosen."""

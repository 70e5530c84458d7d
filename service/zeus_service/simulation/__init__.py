"""Replays recurring jobs through the policies, with no server and no waiting."""

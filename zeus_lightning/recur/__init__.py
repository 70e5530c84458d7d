"""`zeus-lightning recur` and `exec`: launch training, and see how each run ended."""

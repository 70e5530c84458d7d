"""`zeus-lightning recur`: run a training command again and again, as a schedule would."""

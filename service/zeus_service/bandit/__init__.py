"""How batch sizes are chosen: pure functions, without a web framework, a database or a clock."""

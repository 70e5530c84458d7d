"""The pages that a person looks at, and what they ask for while they are open."""

"""How the book is executed, rendered and addressed. The Makefile calls these; readers need none of it."""

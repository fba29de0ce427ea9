"""Lines in models of other people. Nothing else in the library imports this room."""

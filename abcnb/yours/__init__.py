"""Lines in models of other people. Of the library, only `bench` imports this room."""

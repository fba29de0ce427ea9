"""Lines in other people's models. Within the library, only `bench` imports this room."""

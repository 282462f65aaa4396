"""`make test`: every test, in lanes that run side by side and end at about the same time."""

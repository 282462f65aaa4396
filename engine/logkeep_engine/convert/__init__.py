"""One archive out of another, in any format, and archives out of what other tools wrote."""

"""Tasks: they fetch pieces, check them, write their segments in each format, and prove losses."""

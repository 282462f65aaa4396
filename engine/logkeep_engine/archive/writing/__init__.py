"""Writing segments into an archive, in each of its formats, and the files that lie next to them."""

"""Lines, extents and views: the one way to ask what an archive has. See docs/design/0013-one-history.md."""

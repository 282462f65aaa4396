"""Conversions and imports: an archive is made out of another one, in any format, or out of what another tool wrote."""

"""Boxes and the fabric between them: read, made from a catalog, drawn, checked."""

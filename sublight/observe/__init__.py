"""One reader per format, each returning a Trace; and what a kernel's name tells."""

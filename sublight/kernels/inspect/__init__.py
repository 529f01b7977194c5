"""What compiled GPU code tells without a GPU: its resources, its loops, and what binds them."""

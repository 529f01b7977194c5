"""Ways to look at an explanation: one file each."""

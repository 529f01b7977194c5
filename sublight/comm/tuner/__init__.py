"""Rows for NCCL's tuner plugins: what a better choice gains, the files that make it, what is wrong with one."""

"""Topologies, what NCCL would choose and why, expected times, the cluster doctor."""

"""What NCCL would choose on a topology, and why."""

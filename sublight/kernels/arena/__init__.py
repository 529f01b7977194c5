"""The arena: kernels run in processes of their own on buffers of ours, are judged against float64, timed in pairs."""

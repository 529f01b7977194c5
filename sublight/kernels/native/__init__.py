"""Our kernels for the CPU in C++: built at first use with the system's compiler, kept in the user's cache."""

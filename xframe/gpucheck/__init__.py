"""One check of a machine with an NVIDIA GPU and little time: what is there, what is right, how fast it is."""

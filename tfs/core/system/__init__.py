"""What is asked of the system: threads, processors, memory, descriptors, log lines."""

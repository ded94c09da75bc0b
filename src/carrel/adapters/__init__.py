"""Each adapter implements one port with a real library, service or device."""

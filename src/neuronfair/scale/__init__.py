"""Work that is done side by side: in this process, or on a cluster."""

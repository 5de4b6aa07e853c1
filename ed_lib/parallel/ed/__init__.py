"""ED networks on many devices: in stages, and with an error that comes late."""

"""ED networks on many devices: in stages, in shards, and with an error that comes late."""

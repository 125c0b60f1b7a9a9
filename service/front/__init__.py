"""The door for senders that stay as they are: a name server and brokers to them, the cluster behind."""

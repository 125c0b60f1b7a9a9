"""``--listen``: to unchanged senders an instance looks like a name server and brokers, with the cluster behind it."""

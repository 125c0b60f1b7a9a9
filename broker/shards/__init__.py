"""Several brokers of one machine as one: a supervisor with the name server, and a process for each shard."""

"""The rules of owning a shard, without sockets, files, threads or clocks: time is an argument."""

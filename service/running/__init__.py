"""The service as it runs: the owner of a shard, its cache, its deliveries, the command."""

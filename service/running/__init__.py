"""The running service: the owner of a shard, its cache, its deliveries, the instance."""

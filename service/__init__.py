"""A delay service beside an existing RocketMQ cluster: its journal is a topic of that cluster. See docs/cluster.md."""

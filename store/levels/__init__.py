"""RocketMQ's fixed delay levels: queues, progress, and the scheduler that delivers them."""

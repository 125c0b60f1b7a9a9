"""The host of the wheel: a broker and name server that stock RocketMQ clients use unmodified."""

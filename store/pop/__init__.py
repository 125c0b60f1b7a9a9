"""What is handed out by pops: messages that come again unless they are acknowledged in time."""

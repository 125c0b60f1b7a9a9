"""Half messages: deciding, checking and resuming them."""
